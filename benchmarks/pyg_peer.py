"""PyTorch Geometric's SGFormer and ours, with the same sizes and weights, on one graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch_geometric.nn.models import SGFormer as PygSGFormer

from sgformer import FullForward, Graph, ModelConfig, SGFormer, SparseRows, from_pyg

HIDDEN, CLASSES, LAYERS, DROPOUT = 64, 58, 3, 0.5
"""Layers and dropout are PyG's defaults; hidden size and classes are those of a model for debian_trixie."""

Run = Callable[[], torch.Tensor]


class Pair:
    """PyTorch Geometric's model (`theirs`) and ours with its weights (`ours`). Methods return functions to be timed."""

    def __init__(self, graph: Graph) -> None:
        torch.manual_seed(0)
        self.graph = graph
        self.theirs = PygSGFormer(
            graph.num_features,
            HIDDEN,
            CLASSES,
            trans_num_layers=1,
            gnn_num_layers=LAYERS,
            trans_dropout=DROPOUT,
            gnn_dropout=DROPOUT,
        )
        imported = from_pyg(self.theirs.state_dict())
        self.ours = SGFormer(replace(imported.config, attention_dropout=DROPOUT, gnn_dropout=DROPOUT))
        self.ours.load_weights(imported.weights())
        self.labels = torch.randint(CLASSES, (graph.num_nodes,))
        half, quarter = graph.num_nodes // 2, graph.num_nodes // 4
        shuffled = torch.randperm(graph.num_nodes)
        self.parts = shuffled[:half], shuffled[half : half + quarter]
        """Training nodes and validation nodes."""

    def their_log_probabilities(self) -> Run:
        rows = self.graph.features
        dense = rows.toarray() if isinstance(rows, SparseRows) else rows  # PyG's model does not take sparse features
        features = torch.from_numpy(dense)
        edges = torch.from_numpy(self.graph.adjacency.edge_index())
        batch = torch.zeros(self.graph.num_nodes, dtype=torch.long)
        return lambda: self.theirs(features, edges, batch)

    def our_log_probabilities(self) -> Run:
        inputs = self.ours.prepare(self.graph)
        return lambda: F.log_softmax(self.ours(inputs), dim=-1)

    def their_forward(self) -> Run:
        return _evaluating(self.theirs, self.their_log_probabilities())

    def our_forward(self) -> Run:
        return _streaming(self.ours, self.graph)

    def paper_forward(self) -> Run:
        """The paper's model with the same sizes: one input layer for both branches, one Frobenius norm in the attention."""
        config = ModelConfig(in_features=self.graph.num_features, out_features=CLASSES, hidden=HIDDEN, layers=LAYERS)
        return _streaming(SGFormer(config), self.graph)

    def their_epoch(self) -> Run:
        """A step on the training nodes, and the log-probabilities of the validation nodes in evaluation mode."""
        forward = self.their_log_probabilities()
        return self._epoch(self.theirs, lambda nodes: forward()[nodes])

    def our_epoch(self) -> Run:
        """The same for our model, with the calls of `training.fit.loop`."""
        inputs = self.ours.prepare(self.graph)
        return self._epoch(self.ours, lambda nodes: F.log_softmax(self.ours(inputs, nodes), dim=-1))

    def _epoch(self, model: torch.nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]) -> Run:
        training_nodes, validation_nodes = self.parts
        step = _training_step(model, lambda: forward(training_nodes), self.labels[training_nodes])

        def epoch() -> torch.Tensor:
            step()
            model.eval()
            with torch.inference_mode():
                return forward(validation_nodes)

        return epoch

    def their_step(self) -> Run:
        return _training_step(self.theirs, self.their_log_probabilities(), self.labels)

    def our_step(self) -> Run:
        return _training_step(self.ours, self.our_log_probabilities(), self.labels)


def _evaluating(model: torch.nn.Module, forward: Run) -> Run:
    def run() -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            return forward()

    return run


def _streaming(model: SGFormer, graph: Graph) -> Run:
    """The streamed forward, from weights to log-probabilities."""
    forward, weights = FullForward(model.config, graph), model.weights()

    def run() -> torch.Tensor:
        logits = torch.from_numpy(forward.logits(weights))
        for rows in logits.split(8192):  # PyG's model ends with a log-softmax, too
            torch.log_softmax(rows, dim=-1, out=rows)
        return logits

    return run


def _training_step(model: torch.nn.Module, forward: Run, labels: torch.Tensor) -> Run:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(forward(), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
