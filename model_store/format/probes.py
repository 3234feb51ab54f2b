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
SMALLEST = 1e-12
"""So that a model that answers zero everywhere is compared and not divided by."""
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

    def differences(self, found: Answers) -> tuple[float, float]:
        """Largest difference of the embeddings, and of the logits. NaN where these answers are NaN."""
        pairs = ((found.embeddings, self.answers.embeddings), (found.logits, self.answers.logits))
        embeddings, logits = (_difference(np.asarray(one), np.asarray(other)) for one, other in pairs)
        return embeddings, logits


@dataclass(frozen=True)
class Probes:
    probes: tuple[Probe, ...]

    def replay(self, engine: Engine, tolerance: float) -> dict[str, float]:
        """The error of every probe.

        Raises:
            ProbeError: some probe is further off than `tolerance`.
        """
        errors = {probe.name: self.error(probe, probe.asked_of(engine)) for probe in self.probes}
        wrong = {name: error for name, error in errors.items() if not error <= tolerance}
        if wrong:
            listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
            raise ProbeError(f"answers differ from the full-graph forward: {listed}; allowed is {tolerance:.1e}")
        return errors

    def error(self, probe: Probe, found: Answers) -> float:
        """How far answers to one probe are off, as a share of the largest number that any probe expects.

        Of any: a single answer may happen to be close to zero, where no float32 sum of larger numbers has digits left.
        """
        largest = (
            max(float(np.abs(one.answers.embeddings).max()) for one in self.probes),
            max(float(np.abs(one.answers.logits).max()) for one in self.probes),
        )
        shares = [off / max(scale, SMALLEST) for off, scale in zip(probe.differences(found), largest, strict=True)]
        return float(np.max(shares))  # numpy's, because Python's own maximum passes over NaN

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        tensors: dict[str, NDArray[Any]] = {}
        for probe in self.probes:
            answers = {"embeddings": probe.answers.embeddings, "logits": probe.answers.logits}
            parts = answers | _question_parts(probe.question)
            tensors |= {f"{probe.name}.{part}": np.asarray(array) for part, array in parts.items()}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], config: ModelConfig, num_nodes: int) -> Probes:
        """The inverse of `to_tensors`; every question is checked as a user's would be, every answer for its shape.

        Raises:
            ValueError: what is wrong, and with which tensor.
        """
        _check_tensors(tensors)
        nodes = tensors[f"{KNOWN}.nodes"]
        if not len(nodes) or nodes.min() < 0 or nodes.max() >= num_nodes:
            raise ValueError(f"{KNOWN}.nodes must name nodes from 0 to {num_nodes - 1}, and one at least")
        questions: dict[str, NDArray[np.int64] | NewNodes] = {KNOWN: nodes}
        questions |= {name: _new_nodes(tensors, name, config, num_nodes) for name in NEW}
        probes = []
        for name, question in questions.items():
            answers = Answers(tensors[f"{name}.embeddings"], tensors[f"{name}.logits"])
            _check_answers(name, answers, len(question), config)
            probes.append(Probe(name, question, answers))
        return cls(tuple(probes))


_DIMENSIONS = {"nodes": 1, "features": 2, "neighbors": 1, "counts": 1, "edges": 2, "embeddings": 2, "logits": 2}
_WHOLE = ("nodes", "neighbors", "counts", "edges")


def _check_tensors(tensors: Mapping[str, NDArray[Any]]) -> None:
    """Exactly the expected tensors, of the expected kinds: what follows may then look into them."""
    expected = {f"{KNOWN}.{part}" for part in ("nodes", "embeddings", "logits")}
    expected |= {f"{name}.{part}" for name in NEW for part in _DIMENSIONS if part != "nodes"}
    if tensors.keys() != expected:
        raise ValueError(
            f"lacks {sorted(expected - tensors.keys())!a}, has unknown {sorted(tensors.keys() - expected)[:5]!a}"
        )
    for name, array in tensors.items():
        part = name.partition(".")[2]
        kinds = (np.int64,) if part in _WHOLE else (np.float32, np.float64)
        if array.ndim != _DIMENSIONS[part] or array.dtype not in kinds:
            raise ValueError(f"{name} is {array.dtype} with {array.ndim} dimension(s)")


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
    counts, edges = tensors[f"{name}.counts"], tensors[f"{name}.edges"]
    if (counts < 0).any() or counts.sum() != len(tensors[f"{name}.neighbors"]) or edges.shape[0] != 2:
        raise ValueError(f"{name}: {counts.tolist()[:9]} neighbours and edges of shape {edges.shape} do not fit together")
    lists = np.split(tensors[f"{name}.neighbors"], np.cumsum(counts)[:-1])
    return NewNodes.build(
        tensors[f"{name}.features"],
        [list(map(int, ids)) for ids in lists],
        num_nodes=num_nodes,
        num_features=config.in_features,
        edges=[(int(left), int(right)) for left, right in edges.T],
        joint=name == "joint",
    )


def _check_answers(name: str, answers: Answers, count: int, config: ModelConfig) -> None:
    shapes = {"embeddings": (count, config.embedding_size), "logits": (count, config.out_features)}
    for part, shape in shapes.items():
        array = getattr(answers, part)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"{name}.{part} has shape {array.shape}, expected {shape} and finite numbers")


def _difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")
