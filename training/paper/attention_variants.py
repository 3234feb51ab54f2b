"""SGFormer with other attention functions, or several attention layers. For research only: none has exact sums to serve.

linear      the attention of the paper, as served
softmax     softmax(Q K^T / sqrt(d)) V over all pairs: O(N^2)
gat         softmax(LeakyReLU(u.z_i + v.z_j)) V over all pairs, the function of GAT: O(N^2)
nodeformer  positive random features of the softmax, the kernel of NodeFormer and Performer: O(N)
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgformer import ModelConfig, SGFormer
from sgformer.torch_model.model import GraphTensors, apply_linear
from training.data.labelled import LabelledGraph
from training.fit.loop import GRAPH_PARTS
from training.fit.settings import configurations
from training.paper.contenders import Run
from training.paper.research_training import train_module

AttentionFunction = Literal["linear", "softmax", "gat", "nodeformer"]
RANDOM_FEATURES = 30
"""As in NodeFormer's commands."""
MAX_PAIRS = 100_000_000
"""Of nodes, for the functions that hold a matrix of all pairs: 400 MB per head."""


class VariantSGFormer(SGFormer):
    """SGFormer with `depth` attention layers of one function. `linear` with one layer is the model that is served."""

    def __init__(self, config: ModelConfig, function: AttentionFunction = "linear", depth: int = 1) -> None:
        super().__init__(config)
        self._function = function
        # Of the further layers only the attention is used.
        self.further = nn.ModuleList(VariantSGFormer(config, function) for _ in range(depth - 1))
        self.pair = nn.Linear(2 * config.hidden, config.heads, bias=False) if function == "gat" else None

    def embed(self, graph: GraphTensors, nodes: Tensor | None = None) -> Tensor:
        if nodes is not None:
            raise ValueError("a research model computes all nodes")
        states = attended = self._input_states(graph.features)
        layers: list[Any] = [self, *self.further]
        for layer in layers:
            attended = layer.finish_attention(attended, layer.attend_all(attended))
        return self.combine(attended, self._graph_branch(graph, states, None))

    def attend_all(self, states: Tensor) -> Tensor:
        if self._function == "linear":
            return self._attend(states, None)
        config = self.config
        query, key = (self.by_head(apply_linear(part, states)) for part in (self.query, self.key))  # (H, N, d)
        value = states.expand(config.heads, -1, -1) if self.value is None else self.by_head(apply_linear(self.value, states))
        if self._function == "nodeformer":
            return kernel_attention(query, key, value).mean(dim=0)
        weights = self._pair_scores(states, query, key).softmax(dim=2)
        return (weights @ value).mean(dim=0)

    def _pair_scores(self, states: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """(H, N, N)."""
        if self.pair is None:
            scores: Tensor = query @ key.transpose(1, 2) / query.shape[2] ** 0.5
            return scores
        left, right = self.pair.weight.chunk(2, dim=1)  # (H, d) each
        return F.leaky_relu((states @ left.t()).t()[:, :, None] + (states @ right.t()).t()[:, None, :], 0.2)


def kernel_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V by positive random features (Performer, section 2.2), in O(N); (H, N, d)."""
    width = query.shape[2]
    directions = torch.randn(RANDOM_FEATURES, width, generator=torch.Generator().manual_seed(0)).to(query)
    mapped_query, mapped_key = (_positive_features(rows / width**0.25, directions) for rows in (query, key))
    numerator = mapped_query @ (mapped_key.transpose(1, 2) @ value)
    return numerator / (mapped_query @ mapped_key.sum(dim=1)[:, :, None])


def _positive_features(rows: Tensor, directions: Tensor) -> Tensor:
    """exp(w.x - |x|^2 / 2) for every direction w. Differences to the largest exponent cancel in the attention."""
    exponents = rows @ directions.t() - rows.square().sum(dim=2, keepdim=True) / 2
    return (exponents - exponents.amax(dim=(1, 2), keepdim=True)).exp() + 1e-6


def train_variant(
    data: LabelledGraph, settings: dict[str, Any], seed: int, function: AttentionFunction, depth: int = 1
) -> Run:
    """Trains a variant with the settings of a recipe, without dropout of inputs.

    Raises:
        ValueError: the graph has too many pairs of nodes for this function.
    """
    if function in ("softmax", "gat") and data.graph.num_nodes**2 > MAX_PAIRS:
        raise ValueError(f"{data.name}: {function} holds all pairs of nodes, at most {MAX_PAIRS:,}")
    config, training = configurations(data, settings | {"seed": seed})
    torch.manual_seed(seed)
    model = VariantSGFormer(config, function, depth)
    model.fit_features(data.graph)
    graph = model.prepare(data.graph)
    named = list(model.named_parameters())
    of_graph = [parameter for name, parameter in named if name.startswith(GRAPH_PARTS)]
    others = [parameter for name, parameter in named if not name.startswith(GRAPH_PARTS)]
    return train_module(model, lambda: model(graph), (others, of_graph), data, training)
