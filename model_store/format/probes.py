"""Probes: questions with the answers of the full-graph forward. An engine must reproduce them before it serves."""

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
MIN_SCALE = 1e-12
"""Avoids a division by zero for a model whose answers are all zero."""


class ProbedEngine(Protocol):
    """What the replay of probes needs of an engine. `Snapshot` has these methods, too."""

    def known(self, nodes: NDArray[np.int64], /) -> Answers: ...

    def extended(self, new: NewNodes, /) -> Answers: ...


@dataclass(frozen=True)
class Probe:
    name: str
    question: NDArray[np.int64] | NewNodes
    """Rows of the graph, or new nodes."""
    answers: Answers

    def answers_of(self, engine: ProbedEngine) -> Answers:
        """Returns the engine's answers to the question."""
        question = self.question
        return engine.extended(question) if isinstance(question, NewNodes) else engine.known(question)

    def differences(self, answers: Answers) -> tuple[float, float]:
        """Returns the largest difference of the embeddings, and of the logits; NaN where `answers` holds NaN."""
        return (
            _largest_difference(np.asarray(answers.embeddings), np.asarray(self.answers.embeddings)),
            _largest_difference(np.asarray(answers.logits), np.asarray(self.answers.logits)),
        )


@dataclass(frozen=True)
class Probes:
    probes: tuple[Probe, ...]

    def replay(self, engine: ProbedEngine, tolerance: float) -> dict[str, float]:
        """Returns the error of every probe, by name.

        Raises:
            ProbeError: the error of a probe exceeds `tolerance`.
        """
        errors = {probe.name: self.error(probe, probe.answers_of(engine)) for probe in self.probes}
        wrong = {name: error for name, error in errors.items() if not error <= tolerance}
        if wrong:
            listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
            raise ProbeError(f"answers differ from the full-graph forward: {listed}; allowed is {tolerance:.1e}")
        return errors

    def error(self, probe: Probe, answers: Answers) -> float:
        """Returns the largest difference from a probe's answers, relative to the largest number that any probe expects.

        Relative to all probes, because a single answer may be close to zero, where float32 sums of larger numbers
        have no correct digits.
        """
        scales = (
            max(float(np.abs(other.answers.embeddings).max()) for other in self.probes),
            max(float(np.abs(other.answers.logits).max()) for other in self.probes),
        )
        differences = zip(probe.differences(answers), scales, strict=True)
        # numpy's maximum: Python's may ignore NaN.
        return float(np.max([difference / max(scale, MIN_SCALE) for difference, scale in differences]))

    def to_tensors(self) -> dict[str, NDArray[Any]]:
        tensors: dict[str, NDArray[Any]] = {}
        for probe in self.probes:
            parts = {"embeddings": probe.answers.embeddings, "logits": probe.answers.logits}
            if isinstance(probe.question, NewNodes):
                parts |= {part: getattr(probe.question, part) for part in ("features", "neighbors", "counts", "edges")}
            else:
                parts["nodes"] = probe.question
            tensors |= {f"{probe.name}.{part}": np.asarray(array) for part, array in parts.items()}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], config: ModelConfig, num_nodes: int) -> Probes:
        """The inverse of `to_tensors`. Checks every question like a user's request, and the shape of every answer.

        Raises:
            ValueError: names the tensor and what is wrong with it.
        """
        _check_tensors(tensors)
        nodes = tensors[f"{KNOWN}.nodes"]
        if not len(nodes) or nodes.min() < 0 or nodes.max() >= num_nodes:
            raise ValueError(f"{KNOWN}.nodes must have at least one node, from 0 to {num_nodes - 1}")
        questions: dict[str, NDArray[np.int64] | NewNodes] = {KNOWN: nodes}
        questions |= {name: _new_nodes(tensors, name, config, num_nodes) for name in NEW}
        probes = []
        for name, question in questions.items():
            answers = Answers(tensors[f"{name}.embeddings"], tensors[f"{name}.logits"])
            _check_answers(name, answers, len(question), config)
            probes.append(Probe(name, question, answers))
        return cls(tuple(probes))


_DIMENSIONS = {"nodes": 1, "features": 2, "neighbors": 1, "counts": 1, "edges": 2, "embeddings": 2, "logits": 2}
_INTEGER_PARTS = ("nodes", "neighbors", "counts", "edges")


def _check_tensors(tensors: Mapping[str, NDArray[Any]]) -> None:
    """Checks that exactly the expected tensors are there, with the expected types and dimensions."""
    expected = {f"{KNOWN}.{part}" for part in ("nodes", "embeddings", "logits")}
    expected |= {f"{name}.{part}" for name in NEW for part in _DIMENSIONS if part != "nodes"}
    if tensors.keys() != expected:
        missing, unknown = sorted(expected - tensors.keys()), sorted(tensors.keys() - expected)[:5]
        raise ValueError(f"lacks {missing!a}, has unknown {unknown!a}")
    for name, array in tensors.items():
        part = name.partition(".")[2]
        dtypes = (np.int64,) if part in _INTEGER_PARTS else (np.float32, np.float64)
        if array.ndim != _DIMENSIONS[part] or array.dtype not in dtypes:
            raise ValueError(f"{name} is {array.dtype} with {array.ndim} dimension(s)")


def _new_nodes(tensors: Mapping[str, NDArray[Any]], name: str, config: ModelConfig, num_nodes: int) -> NewNodes:
    neighbors, counts, edges = (tensors[f"{name}.{part}"] for part in ("neighbors", "counts", "edges"))
    if (counts < 0).any() or counts.sum() != len(neighbors) or edges.shape[0] != 2:
        raise ValueError(f"{name}: {counts.tolist()[:9]} neighbours and edges of shape {edges.shape} do not fit together")
    return NewNodes.build(
        tensors[f"{name}.features"],
        [ids.tolist() for ids in np.split(neighbors, np.cumsum(counts)[:-1])],
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


def _largest_difference(array: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.abs(array - expected).max()) if array.shape == expected.shape else float("inf")
