"""Makes the probes of a snapshot: a full-graph forward for every one of them, over the graph with the new nodes added.

The augmented features and all states are scratch files; what is held in memory is one copy of the edges. The last step, from
states and sums to answers, runs on torch in float64 (`answers_of`).

A probe checks the path that serves without using it: the graph has the new nodes in it, so no neighbourhood is searched and
no stored state is updated; the sums run over all rows, so none is added to them; and torch computes, not numpy or ONNX.
The formula of the last step is shared with the path that serves. The tests compare it with the paper's N x N form.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.format import npy
from model_store.format.layout import ArraySpec
from model_store.format.probes import KNOWN, Probe, Probes
from sgformer import Answers, Graph, ModelConfig, NewNodes, SparseRows, Summary, summarize
from sgformer.features import FeatureRows
from sgformer.full_graph.forward import answers_of

KNOWN_NODES = 16
NEIGHBORS = 3
COPY_ROWS = 65_536


def full_forward_probes(
    config: ModelConfig, weights: Mapping[str, NDArray[Any]], graph: Graph, summary: Summary, scratch: Path
) -> Probes:
    """`summary` is the full-graph forward without new nodes, in float32. Scratch files come and go below `scratch`."""
    nodes = _known_nodes(graph)
    probes = [Probe(KNOWN, nodes, answers_of(config, weights, summary, nodes))]
    for name, new in _questions(graph).items():
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            answers = _new_answers(config, weights, graph, new, Path(folder))
        probes.append(Probe(name, new, answers))
    return Probes(tuple(probes))


def _known_nodes(graph: Graph) -> NDArray[np.int64]:
    """The largest hub, the loneliest node, the first, the last, and some between."""
    degrees, count = graph.adjacency.all_degrees(), graph.num_nodes
    between = np.random.default_rng(0).integers(0, count, KNOWN_NODES)
    return np.unique(np.append(between, [degrees.argmax(), degrees.argmin(), 0, count - 1])).astype(np.int64)


def _questions(graph: Graph) -> dict[str, NewNodes]:
    """New nodes that look like nodes of the graph, in the four situations that take different paths."""
    rng, degrees = np.random.default_rng(1), graph.adjacency.all_degrees()
    hub = int(degrees.argmax())
    ordinary = np.flatnonzero(degrees <= np.median(degrees))

    def some() -> list[int]:
        return [int(node) for node in rng.choice(ordinary, NEIGHBORS)]

    def new(*neighbors: list[int], joint: bool = False) -> NewNodes:
        sources = rng.integers(0, graph.num_nodes, len(neighbors))
        features = np.concatenate([dense(graph.features[node : node + 1]) for node in sources.tolist()])
        return NewNodes.build(
            features,
            neighbors,
            num_nodes=graph.num_nodes,
            num_features=graph.num_features,
            joint=joint,
            edges=[(0, 1)] if joint else [],
        )

    return {
        "ordinary": new(some()),
        "isolated": new([]),
        "hub": new([hub, *some()]),
        "joint": new(some(), [hub], joint=True),
    }


def _new_answers(
    config: ModelConfig, weights: Mapping[str, NDArray[Any]], graph: Graph, new: NewNodes, folder: Path
) -> Answers:
    def allocate(name: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
        return npy.create(folder / f"{name}.npy", ArraySpec(shape, dtype.str))

    augmented = _augmented(graph, new, folder)
    summary = summarize(config, weights, augmented, allocate=allocate)
    rows = np.arange(graph.num_nodes, augmented.num_nodes)
    return answers_of(config, weights, summary, rows)


def _augmented(graph: Graph, new: NewNodes, folder: Path) -> Graph:
    owners = graph.num_nodes + np.repeat(np.arange(len(new)), new.counts)
    edges = np.concatenate([np.stack([owners, new.neighbors]), new.edges + graph.num_nodes], axis=1)
    adjacency = graph.adjacency.with_nodes(len(new), edges)
    return Graph(_stacked_features(graph.features, np.asarray(new.features), folder), adjacency)


def _stacked_features(known: FeatureRows, added: NDArray[Any], folder: Path) -> FeatureRows:
    if not isinstance(known, SparseRows):
        return _stacked(folder / "features.npy", known, added)
    places = np.nonzero(added)
    indptr = np.append(known.indptr, known.indptr[-1] + np.cumsum((added != 0).sum(axis=1)))
    indices = _stacked(folder / "indices.npy", known.indices, places[1])
    return SparseRows(indptr, indices, _stacked(folder / "values.npy", known.values, added[places]), known.width)


def _stacked(path: Path, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Two arrays, one below the other, as a mapped file."""
    length = len(first) + len(second)
    both = npy.create(path, ArraySpec((length, *first.shape[1:]), first.dtype.str))
    for start in range(0, len(first), COPY_ROWS):
        both[start : start + COPY_ROWS][: len(first) - start] = first[start : start + COPY_ROWS]
    both[len(first) :] = second
    return both


def dense(rows: FeatureRows) -> NDArray[Any]:
    return rows.toarray() if isinstance(rows, SparseRows) else np.asarray(rows)
