"""Computes the probes of a snapshot: questions, and the answers of a full-graph forward after the new nodes are added.

The answers for new nodes use neither the stored states nor `extend`, which answers requests:

1. One pass over all rows computes the input states and the attention sums again, once for all questions.
2. The GCN starts from these input states, on the graph with the new nodes, and computes the rows that the answer depends on.
3. `full_graph.reference`, the trainable module, computes the last step.

All questions together cost one pass over the rows, not a full forward each. Arrays as large as the graph are scratch files;
memory holds one copy of the edges and one block of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model_store.format import npy
from model_store.format.layout import ArraySpec
from model_store.format.probes import KNOWN, Probe, Probes
from sgformer import Adjacency, Answers, AttentionSums, Graph, InferenceModel, ModelConfig, NewNodes, NodeStates, Summary
from sgformer.arrays.torch_operations import csr_tensor, placed_on, shared
from sgformer.features import FeatureRows, SparseRows
from sgformer.full_graph.passes import Passes
from sgformer.full_graph.reference import reference_answers

RANDOM_KNOWN_NODES = 16
NEIGHBORS = 3
MAX_NEW_NODES = 2  # in one question
BLOCK_ROWS = 65_536
Weights = Mapping[str, NDArray[Any]]


def full_forward_probes(config: ModelConfig, weights: Weights, graph: Graph, summary: Summary, scratch: Path) -> Probes:
    """Computes all probes.

    Args:
        summary: the full-graph forward in float32; used for the known-node probe only.
        scratch: an empty folder.
    """
    nodes = _known_nodes(graph)
    reference = _Reference(config, weights, graph, scratch)
    new = [Probe(name, question, reference.answers(question)) for name, question in _questions(graph).items()]
    return Probes((Probe(KNOWN, nodes, reference_answers(config, weights, summary, nodes)), *new))


class _Reference:
    """Answers questions about new nodes. The scratch arrays have a row per known node, then rows for the new nodes."""

    def __init__(self, config: ModelConfig, weights: Weights, graph: Graph, scratch: Path) -> None:
        self._config, self._weights, self._graph = config, weights, graph
        self._model = InferenceModel(config, weights, np.float32, placed_on("cpu"))
        spec = ArraySpec((graph.num_nodes + MAX_NEW_NODES, config.hidden), "<f4")
        self._inputs = npy.create(scratch / "probe_inputs.npy", spec)
        self._initial = self._inputs if config.gnn_input == "shared" else npy.create(scratch / "probe_initial.npy", spec)
        self._layers = [npy.create(scratch / f"probe_layer_{number}.npy", spec) for number in (1, 2)]
        self._known_sums = self._fill_inputs(graph, 0)

    def answers(self, new: NewNodes) -> Answers:
        num_known, count = self._graph.num_nodes, len(new)
        owners = num_known + np.repeat(np.arange(count), new.counts)
        edges = np.concatenate([np.stack([owners, new.neighbors]), new.edges + num_known], axis=1)
        new_rows = Graph(np.asarray(new.features), Adjacency(np.zeros(count + 1, dtype=np.int64), edges[0][:0]))
        sums = self._known_sums + self._fill_inputs(new_rows, num_known)
        rows = np.arange(num_known, num_known + count)
        layers = self._graph_states(self._graph.adjacency.with_nodes(count, edges), rows)
        summary = Summary(NodeStates(self._inputs, (self._initial, layers), ()), sums)
        return reference_answers(self._config, self._weights, summary, rows)

    def _fill_inputs(self, graph: Graph, start: int) -> AttentionSums:
        """Fills in the input states of the graph's nodes from row `start` on, and returns their attention sums."""
        rows = slice(start, start + graph.num_nodes)
        inputs = self._inputs[rows]
        initial = inputs if self._initial is self._inputs else self._initial[rows]
        with torch.inference_mode():
            return Passes(self._config, graph).inputs(self._model, inputs, initial)

    def _graph_states(self, adjacency: Adjacency, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the output of the GCN; only `rows` are valid.

        With L layers, layer l is computed for the rows within L - l hops of `rows`.
        """
        needed = [rows]
        for _ in range(1, self._config.layers):
            needed.append(_with_neighbors(adjacency, needed[-1]))
        root = (adjacency.all_degrees() + 1.0) ** -0.5
        states = self._initial
        for number, computed in enumerate(reversed(needed[: self._config.layers])):
            previous, states, layer = states, self._layers[number % 2], self._model.graph_layers[number]
            own = self._initial if layer.reads == 0 else previous
            for start in range(0, len(computed), BLOCK_ROWS):
                block = computed[start : start + BLOCK_ROWS]
                with torch.inference_mode():
                    product = _propagated(adjacency, root, block, previous)
                    states[block] = layer(product, torch.from_numpy(own[block])).numpy()
        return states


def _with_neighbors(adjacency: Adjacency, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    members = np.zeros(adjacency.num_nodes, dtype=bool)
    members[rows] = True
    for start in range(0, len(rows), BLOCK_ROWS):
        members[adjacency.neighbors(rows[start : start + BLOCK_ROWS])] = True
    return np.flatnonzero(members)


def _propagated(adjacency: Adjacency, root: NDArray[Any], rows: NDArray[np.int64], states: NDArray[Any]) -> torch.Tensor:
    """These rows of P = D^-1/2 (A + I) D^-1/2 times the states; `root` is the diagonal of D^-1/2."""
    degrees, neighbors = adjacency.degrees(rows), adjacency.neighbors(rows)
    weights = (np.repeat(root[rows], degrees) * root[neighbors]).astype(np.float32)
    matrix = csr_tensor(np.append(0, np.cumsum(degrees)), neighbors, torch.from_numpy(weights), len(states))
    own = torch.from_numpy(states[rows] * (root[rows] ** 2).astype(np.float32)[:, None])
    return own + matrix @ shared(states)


def _known_nodes(graph: Graph) -> NDArray[np.int64]:
    """The nodes with the most and the fewest neighbours, the first, the last, and some at random."""
    degrees, count = graph.adjacency.all_degrees(), graph.num_nodes
    random = np.random.default_rng(0).integers(0, count, RANDOM_KNOWN_NODES)
    return np.unique(np.append(random, [degrees.argmax(), degrees.argmin(), 0, count - 1])).astype(np.int64)


def _questions(graph: Graph) -> dict[str, NewNodes]:
    """New nodes with features of known nodes, in the four situations that take different code paths."""
    rng, degrees = np.random.default_rng(1), graph.adjacency.all_degrees()
    hub = int(degrees.argmax())
    ordinary = np.flatnonzero(degrees <= np.median(degrees))

    def ordinary_neighbors() -> list[int]:
        return [int(node) for node in rng.choice(ordinary, NEIGHBORS)]

    def new_nodes(*neighbors: list[int], joint: bool = False) -> NewNodes:
        sources = rng.integers(0, graph.num_nodes, len(neighbors))
        features = np.concatenate([dense(graph.features[node : node + 1]) for node in sources.tolist()])
        edges = [(0, 1)] if joint else []
        sizes = {"num_nodes": graph.num_nodes, "num_features": graph.num_features}
        return NewNodes.build(features, neighbors, joint=joint, edges=edges, **sizes)

    return {
        "ordinary": new_nodes(ordinary_neighbors()),
        "isolated": new_nodes([]),
        "hub": new_nodes([hub, *ordinary_neighbors()]),
        "joint": new_nodes(ordinary_neighbors(), [hub], joint=True),
    }


def dense(rows: FeatureRows) -> NDArray[Any]:
    return rows.toarray() if isinstance(rows, SparseRows) else np.asarray(rows)
