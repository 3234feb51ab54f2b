"""Questions with the answers of the full-graph forward: what every engine must reproduce before it may go live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.errors import ProbeError
from sgformer import Answers, ModelConfig, NewNodes

KNOWN = "known"
NEW = ("ordinary", "isolated", "hub", "joint")


class Engine(Protocol):
    """Whatever answers from a snapshot. A `Snapshot` is one itself."""

    def known(self, nodes: NDArray[np.int64], /) -> Answers: ...

    def extended(self, new: NewNodes, /) -> Answers: ...


@dataclass(frozen=True)
class Probe:
    name: str
    question: NDArray[np.int64] | NewNodes
    """Rows of the graph, or new nodes."""
    answers: Answers

    def asked_of(self, engine: Engine) -> Answers:
        question = self.question
        return engine.extended(question) if isinstance(question, NewNodes) else engine.known(question)

    def error_of(self, engine: Engine) -> float:
        """How far the engine is off, as a share of the largest expected number (at least 1). NaN where it answers NaN."""
        found = self.asked_of(engine)
        pairs = ((found.embeddings, self.answers.embeddings), (found.logits, self.answers.logits))
        # numpy's maximum, because Python's own passes over NaN.
        return float(np.max([_error(np.asarray(one), np.asarray(other)) for one, other in pairs]))


@dataclass(frozen=True)
class Probes:
    probes: tuple[Probe, ...]

    def replay(self, engine: Engine, tolerance: float) -> dict[str, float]:
        """The error of every probe.

        Raises:
            ProbeError: some probe is further off than `tolerance`.
        """
        errors = {probe.name: probe.error_of(engine) for probe in self.probes}
        wrong = {name: error for name, error in errors.items() if not error <= tolerance}
        if wrong:
            listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
            raise ProbeError(f"answers differ from the full-graph forward: {listed}; allowed is {tolerance:.1e}")
        return errors

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        tensors: dict[str, NDArray[Any]] = {}
        for probe in self.probes:
            answers = {"embeddings": probe.answers.embeddings, "logits": probe.answers.logits}
            parts = answers | _question_parts(probe.question)
            tensors |= {f"{probe.name}.{part}": np.asarray(array) for part, array in parts.items()}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], config: ModelConfig, num_nodes: int) -> Probes:
        """The inverse of `to_tensors`; every question is checked as a user's would be, every answer for its shape."""
        questions: dict[str, NDArray[np.int64] | NewNodes] = {KNOWN: tensors[f"{KNOWN}.nodes"]}
        questions |= {name: _new_nodes(tensors, name, config, num_nodes) for name in NEW}
        probes = []
        for name, question in questions.items():
            answers = Answers(tensors[f"{name}.embeddings"], tensors[f"{name}.logits"])
            _check_answers(name, answers, len(question), config)
            probes.append(Probe(name, question, answers))
        return cls(tuple(probes))


def _question_parts(question: NDArray[np.int64] | NewNodes) -> dict[str, NDArray[Any]]:
    if not isinstance(question, NewNodes):
        return {"nodes": question}
    return {
        "features": np.asarray(question.features),
        "neighbors": question.neighbors,
        "counts": question.counts,
        "edges": question.edges,
    }


def _new_nodes(tensors: Mapping[str, NDArray[Any]], name: str, config: ModelConfig, num_nodes: int) -> NewNodes:
    counts = tensors[f"{name}.counts"]
    lists = np.split(tensors[f"{name}.neighbors"], np.cumsum(counts)[:-1])
    return NewNodes.build(
        tensors[f"{name}.features"],
        [list(map(int, ids)) for ids in lists],
        num_nodes=num_nodes,
        num_features=config.in_features,
        edges=[(int(left), int(right)) for left, right in tensors[f"{name}.edges"].T],
        joint=name == "joint",
    )


def _check_answers(name: str, answers: Answers, count: int, config: ModelConfig) -> None:
    shapes = {"embeddings": (count, config.embedding_size), "logits": (count, config.out_features)}
    for part, shape in shapes.items():
        array = getattr(answers, part)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"{name}.{part} has shape {array.shape}, expected {shape} and finite numbers")


def _error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
