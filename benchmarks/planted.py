"""A graph whose labels are decided by three known edges per node, and a model of it in PyTorch Geometric, with our copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn.models import SGFormer as PygSGFormer

from sgformer import ChangingGraph, Graph, InferenceModel, from_pyg, summarize

CLASSES, FEATURES, HIDDEN, DECISIVE = 3, 16, 32, 3
MARKERS, NEUTRAL = 40, 300
"""Nodes whose features show a class (per class), and nodes whose features show nothing."""


@dataclass(frozen=True)
class Planted:
    """A case is a node without a class of its own: its label is the class of the three marked nodes it is linked to."""

    graph: Graph
    labels: np.ndarray
    """Of all nodes; -1 for neutral nodes."""
    cases: np.ndarray
    decisive: np.ndarray
    """(cases, 3): the neighbours that decide the label of each case."""

    @classmethod
    def make(cls, cases: int, seed: int = 0) -> Planted:
        rng = np.random.default_rng(seed)
        marked = CLASSES * MARKERS
        first = marked + NEUTRAL
        features = rng.normal(scale=0.3, size=(first + cases, FEATURES)).astype(np.float32)
        labels = np.full(first + cases, -1)
        labels[:marked] = np.repeat(np.arange(CLASSES), MARKERS)
        features[np.arange(marked), labels[:marked]] += 2
        labels[first:] = rng.integers(0, CLASSES, cases)
        decisive = np.array([label * MARKERS + rng.choice(MARKERS, DECISIVE, replace=False) for label in labels[first:]])
        edges = [np.stack([np.repeat(np.arange(first, first + cases), DECISIVE), decisive.ravel()])]
        for case in range(first, first + cases):
            others = marked + rng.choice(NEUTRAL, rng.integers(4, 12), replace=False)
            edges.append(np.stack([np.full(len(others), case), others]))
        graph = Graph.build(features, np.concatenate(edges, axis=1))
        return cls(graph, labels, np.arange(first, first + cases), decisive)

    def train(self, epochs: int = 80) -> PygSGFormer:
        """Trains on all nodes with a label: the explanations are those of a model that knows its graph."""
        torch.manual_seed(0)
        model = PygSGFormer(FEATURES, HIDDEN, CLASSES, trans_num_layers=1, gnn_num_layers=2, trans_dropout=0, gnn_dropout=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        arguments, labels = self.tensors(), torch.from_numpy(self.labels)
        known = labels >= 0
        for _ in range(epochs):
            model.train()
            optimizer.zero_grad()
            F.nll_loss(model(*arguments)[known], labels[known]).backward()
            optimizer.step()
        return model.eval()

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = torch.from_numpy(np.asarray(self.graph.features))
        edges = torch.from_numpy(self.graph.adjacency.edge_index())
        both = torch.cat([edges, edges.flip(0)], dim=1) if (edges[0] < edges[1]).all() else edges
        return features, both, torch.zeros(self.graph.num_nodes, dtype=torch.long)

    def served(self, model: PygSGFormer) -> ChangingGraph:
        """The same weights, as a service has them."""
        imported = from_pyg(model.state_dict())
        config, weights = imported.config, imported.weights()
        summary = summarize(config, weights, self.graph)
        return ChangingGraph(InferenceModel(config, weights), summary.states, summary.sums, self.graph.adjacency)
