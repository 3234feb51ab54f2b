"""PyTorch Geometric's SGFormer, trained for the tables. For research only: it is never served."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sgformer import SparseRows
from sgformer.features import transformed
from training.data.labelled import LabelledGraph
from training.fit.settings import configurations
from training.paper.contenders import Run
from training.paper.research_training import train_module

MAX_VALUES = 200_000_000
"""Of dense features, which PyG's model needs: 800 MB."""


def train_pyg(data: LabelledGraph, settings: dict[str, Any], seed: int) -> Run:
    """The model has PyG's defaults and our hidden size. The training and the scaling of features are those of the recipe,
    without dropout of inputs.

    Raises:
        ValueError: the task is not one class per node, or the dense features exceed `MAX_VALUES`.
    """
    from torch_geometric.nn.models import SGFormer

    if data.task != "multiclass" or data.graph.num_nodes * data.graph.num_features > MAX_VALUES:
        raise ValueError(
            f"{data.name}: PyG's SGFormer has a class per node and dense features, at most {MAX_VALUES:,} values"
        )
    config, training = configurations(data, settings | {"seed": seed})
    torch.manual_seed(seed)
    model = SGFormer(data.graph.num_features, config.hidden, data.num_outputs)
    features, edges = _features(data, config.feature_transform), torch.from_numpy(data.graph.adjacency.edge_index())
    batch = torch.zeros(data.graph.num_nodes, dtype=torch.int64)
    # Its output is the logarithm of probabilities, of which the cross entropy is that of logits.
    return train_module(model, lambda: model(features, edges, batch), (model.params1, model.params2), data, training)


def _features(data: LabelledGraph, transform: Any) -> torch.Tensor:
    rows = data.graph.features.toarray() if isinstance(data.graph.features, SparseRows) else data.graph.features
    mean, scale = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    scaled = transformed(rows, transform, mean, np.where(scale > 0, scale, 1))
    return torch.as_tensor(np.asarray(scaled), dtype=torch.float32)
