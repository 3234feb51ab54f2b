"""SGFormer as a trainable torch module: the model of the paper and its published variants (`config`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgformer.config import ModelConfig
from sgformer.features import SparseRows, column_statistics, folded, transformed
from sgformer.graph import Graph
from sgformer.request_time.inference import InferenceModel
from sgformer.request_time.layers import ROW_EPSILON
from sgformer.torch_model.attention import attend, unit_rows
from sgformer.torch_model.dropout import dropout
from sgformer.torch_model.propagation import Propagation, SparseFeatures, linear, rows_of
from sgformer.weights import check_weights, layer_has_weight, layer_is_plain, layer_reads


@dataclass(frozen=True)
class GraphTensors:
    """A graph as `SGFormer.forward` reads it, made by `SGFormer.prepare`."""

    features: Tensor | SparseFeatures
    propagate: Propagation


class SGFormer(nn.Module):
    """A layer of exact all-pair attention beside a GCN.

    `forward` takes a graph from `prepare` and returns the logits of all nodes or of a subset. All nodes take part in
    attention and propagation; work that only the logits of other nodes need is skipped.
    """

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, hidden, head_width = config.in_features, config.hidden, config.heads * config.hidden
        self.input = nn.Linear(width, hidden)
        self.input_norm = nn.LayerNorm(hidden) if config.input_layer_norm else None
        self.query = nn.Linear(hidden, head_width, bias=config.qkv_bias)
        self.key = nn.Linear(hidden, head_width, bias=config.qkv_bias)
        self.value = nn.Linear(hidden, head_width, bias=config.qkv_bias) if config.value_map else None
        self.attention_norm = nn.LayerNorm(hidden) if config.attention_layer_norm else None
        self.graph_input: nn.Linear | None = None
        if config.gnn_input == "own":
            self.graph_input = nn.Linear(width, hidden)
        elif config.gnn_input == "features":
            self.graph_input = nn.Linear(width, hidden, bias=False)
            nn.init.xavier_uniform_(self.graph_input.weight)  # the weight of the first GCN layer
        self.graph_input_norm = graph_norm(config) if config.gnn_input == "own" else None
        self.graph_layers = nn.ModuleList(GraphConvolution(config, index) for index in range(config.layers))
        self.output = nn.Linear(config.embedding_size, config.out_features)
        self._attends = config.combine == "cat" or config.alpha < 1
        if not self._attends:
            self._freeze_attention()
        if config.feature_transform == "standard":
            self.register_buffer("feature_mean", torch.zeros(width))
            self.register_buffer("feature_scale", torch.ones(width))

    def _freeze_attention(self) -> None:
        """For a model that is a GCN: DistributedDataParallel refuses trainable parameters that no step uses."""
        unused = [self.query, self.key, self.value, self.attention_norm]
        unused += [] if self.config.gnn_input == "shared" else [self.input, self.input_norm]
        for part in filter(None, unused):
            part.requires_grad_(False)

    def fit_features(self, graph: Graph) -> None:
        """Sets the mean and scale of `standard` features. They are weights of the model."""
        if self.config.feature_transform == "standard":
            mean, scale = column_statistics(graph.features)
            self.feature_mean.copy_(torch.from_numpy(mean))
            self.feature_scale.copy_(torch.from_numpy(scale))

    def prepare(self, graph: Graph) -> GraphTensors:
        """Converts a graph for `forward`, in this model's precision and on its device. Call it once, not per step."""
        graph.check_width(self.config.in_features)
        weight = self.output.weight
        mean, scale = (array.double().cpu().numpy() for array in self._feature_statistics())
        rows = transformed(graph.features, self.config.feature_transform, mean, scale)
        features: Tensor | SparseFeatures
        if isinstance(rows, SparseRows):
            features = SparseFeatures(rows, weight.dtype, weight.device)
        else:
            features = torch.as_tensor(rows, dtype=weight.dtype, device=weight.device)
        return GraphTensors(features, Propagation.of(graph.adjacency, weight.dtype, weight.device))

    def forward(self, graph: GraphTensors, nodes: Tensor | None = None) -> Tensor:
        """The logits of all nodes, or of `nodes`, which must be distinct."""
        return apply_linear(self.output, self.embed(graph, nodes))

    def embed(self, graph: GraphTensors, nodes: Tensor | None = None) -> Tensor:
        """Z_out = (1 - alpha) AN(Z0) + alpha GN(Z0, A) (paper, "Model Design")."""
        states = self._input_states(graph.features)
        if not self._attends:
            return self._graph_branch(graph, states, nodes)
        attended = self.finish_attention(rows_of(states, nodes), self._attend(states, nodes))
        return self.combine(attended, self._graph_branch(graph, states, nodes))

    def finish_attention(self, states: Tensor, attended: Tensor) -> Tensor:
        """The attention branch after the all-pair attention: residual, norm, activation, dropout."""
        config = self.config
        if config.attention_residual is not None:
            attended = torch.lerp(states, attended, config.attention_residual)
        if self.attention_norm is not None:
            attended = self.attention_norm(attended)
        return dropout(attended, config.attention_dropout, self.training, relu=config.attention_activation)

    def combine(self, attended: Tensor, propagated: Tensor) -> Tensor:
        if self.config.combine == "cat":
            return torch.cat([attended, propagated], dim=1)
        return torch.lerp(attended, propagated, self.config.alpha)

    def weights(self) -> dict[str, NDArray[Any]]:
        """Copies of the tensors of the model, by name (see `weights.expected_shapes`)."""
        state = self.state_dict()
        return {n: t.detach().cpu().numpy().copy() for n, t in state.items() if not n.endswith("num_batches_tracked")}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """The inverse of `weights`. On a WeightsError, which names every tensor at fault, the model is unchanged."""
        check_weights(self.config, weights)
        self.load_state_dict({name: torch.as_tensor(np.asarray(array)) for name, array in weights.items()}, strict=False)

    def inference(self, dtype: Any = None) -> InferenceModel:
        """The request-time model on numpy, by default in the precision of this model."""
        weights = self.weights()
        return InferenceModel(self.config, weights, dtype or weights["output.weight"].dtype)

    def _input_states(self, features: Tensor | SparseFeatures) -> Tensor:
        """Z0 = f_I(X)."""
        states = self._read_features(self.input, features)
        if self.input_norm is not None:
            states = self.input_norm(states)
        return dropout(states, self.config.attention_dropout, self.training, relu=True)

    def _attend(self, states: Tensor, nodes: Tensor | None) -> Tensor:
        """The all-pair attention in O(N): [V + Q~ (K~^T V) / N] / [1 + Q~ (K~^T 1) / N]."""
        config, count = self.config, states.shape[0]
        key = self.by_head(apply_linear(self.key, states))
        value = states.expand(config.heads, -1, -1)
        if self.value is not None:
            value = self.by_head(apply_linear(self.value, states))
        if config.normalization == "row":
            query = unit_rows(self.by_head(apply_linear(self.query, rows_of(states, nodes))), ROW_EPSILON)
            key = unit_rows(key, ROW_EPSILON)
            scale = query.new_full((), 1 / count)
        else:
            all_queries = apply_linear(self.query, states)  # the norm is over all nodes
            norms = all_queries.norm() * key.norm() * count
            query = self.by_head(rows_of(all_queries, nodes))
            scale = torch.where(norms > 0, 1 / torch.where(norms > 0, norms, 1), 0)
        own = None if nodes is None else value.index_select(1, nodes)
        out = attend(query, key, value, scale, own)  # (H, n, d)
        return out[0] if config.heads == 1 else out.mean(dim=0)

    def by_head(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.config.heads, self.config.hidden).transpose(0, 1)  # (H, N, d)

    def _graph_branch(self, graph: GraphTensors, states: Tensor, nodes: Tensor | None) -> Tensor:
        initial = self._graph_input_states(graph.features, states)
        if not self.graph_layers:
            return rows_of(initial, nodes)
        out = initial
        for layer in self.graph_layers[:-1]:
            out = layer(graph.propagate(out), initial if layer.reads == 0 else out)
        layer = self.graph_layers[-1]
        last: Tensor = layer(graph.propagate(out), initial if layer.reads == 0 else out, nodes)
        return last

    def _graph_input_states(self, features: Tensor | SparseFeatures, states: Tensor) -> Tensor:
        if self.graph_input is None:
            return states
        out = self._read_features(self.graph_input, features)
        if self.config.gnn_input == "features":
            return out
        if self.graph_input_norm is not None:
            out = self.graph_input_norm(out)
        return dropout(out, self.config.gnn_dropout, self.training, relu=True)

    def _read_features(self, layer: nn.Linear, features: Tensor | SparseFeatures) -> Tensor:
        if isinstance(features, Tensor):
            return apply_linear(layer, features)
        weight, bias = layer.weight.t(), layer.bias
        if self.config.feature_transform == "standard":
            zeros = weight.new_zeros(weight.shape[1])
            weight, bias = folded(weight, zeros if bias is None else bias, *self._feature_statistics())
        product = features @ weight
        return product if bias is None else product + bias

    def _feature_statistics(self) -> tuple[Tensor, Tensor]:
        if self.config.feature_transform == "standard":
            return self.feature_mean, self.feature_scale
        return torch.zeros(0), torch.ones(0)


def apply_linear(layer: nn.Linear, rows: Tensor) -> Tensor:
    return linear(rows, layer.weight, layer.bias)


def graph_norm(config: ModelConfig) -> nn.BatchNorm1d | nn.LayerNorm | None:
    if config.gnn_layer_norm:
        return nn.LayerNorm(config.hidden)
    return nn.BatchNorm1d(config.hidden) if config.gnn_batch_norm else None


class GraphConvolution(nn.Module):
    """The part of a GCN layer after its propagation: weight, norm, activation, dropout, residual, in this order."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        hidden, plain = config.hidden, layer_is_plain(config, index)
        self.activation = config.gnn_activation and not plain
        self.reads = layer_reads(config, index)
        """The layer whose states are the argument `own` of `forward`."""
        self.residual = self.reads is not None and not plain and (config.gnn_residual or config.gnn_layer_residual)
        self.dropout = 0.0 if plain else config.gnn_dropout
        self.reads_initial = config.gnn_init
        self.weight = self.bias = None
        if layer_has_weight(config, index):
            self.weight = nn.Parameter(torch.empty(hidden, hidden * (2 if config.gnn_init else 1)))
            nn.init.xavier_uniform_(self.weight)
        if config.gnn_weight:
            self.bias = nn.Parameter(torch.zeros(hidden))
        self.norm = None if plain else graph_norm(config)

    def forward(self, aggregate: Tensor, own: Tensor, nodes: Tensor | None = None) -> Tensor:
        if not isinstance(self.norm, nn.BatchNorm1d) or not self.training:
            aggregate, own = rows_of(aggregate, nodes), rows_of(own, nodes)
            return self._finish(self._map(aggregate, own), own)
        # In training a batch norm reads all rows.
        return self._finish(rows_of(self._map(aggregate, own), nodes), rows_of(own, nodes))

    def _map(self, aggregate: Tensor, own: Tensor) -> Tensor:
        out = torch.cat([aggregate, own], dim=1) if self.reads_initial else aggregate
        if self.weight is not None:
            out = linear(out, self.weight, self.bias)
        elif self.bias is not None:
            out = out + self.bias
        return out if self.norm is None else self.norm(out)

    def _finish(self, out: Tensor, own: Tensor) -> Tensor:
        out = dropout(out, self.dropout, self.training, relu=self.activation)
        return out + own if self.residual else out
