"""The settings that a search tries, and its first trials.

The space is that of the paper, plus the scaling of features, the switches in which the published variants differ, and
options of tuned GCNs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sgformer.config import Task
from training.data.labelled import LabelledGraph
from training.fit.settings import configurations, with_gnn_norm

SPACE: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.001, 0.005, 0.01, 0.05, 0.1),
    "weight_decay": (1e-5, 1e-4, 5e-4, 1e-3, 1e-2),
    "gnn_weight_decay": (1e-5, 1e-4, 5e-4, 1e-3, 1e-2),
    "hidden": (32, 64, 128, 256, 512),
    "attention_dropout": (0.0, 0.2, 0.3, 0.5, 0.7),
    "gnn_dropout": (0.0, 0.2, 0.3, 0.5, 0.7),
    "alpha": (0.5, 0.8),
    "layers": (1, 2, 3, 4),
    "gnn_input": ("shared", "features"),
    "gnn_plain_last": (True, False),
    "gnn_norm": ("batch", "none", "layer"),
    "gnn_layer_residual": (False, True),
    "label_smoothing": (0.0, 0.1),
    "schedule": ("constant", "cosine"),
    "feature_dropout": (0.0, 0.2, 0.5),
    "edge_dropout": (0.0, 0.2, 0.5),
    "input_layer_norm": (True, False),
    "attention_layer_norm": (True, False),
    "value_map": (True, False),
    "attention_residual": (0.5, 1.0),  # 1: no residual
    "feature_transform": ("none", "row", "standard"),
}
COMMON: dict[str, Any] = {
    "learning_rate": 0.01,
    "weight_decay": 1e-3,
    "gnn_weight_decay": 5e-4,
    "hidden": 64,
    "attention_dropout": 0.2,
    "gnn_dropout": 0.5,
    "layers": 2,
    "gnn_layer_residual": False,
    "label_smoothing": 0.0,
    "schedule": "constant",
    "feature_dropout": 0.0,
    "edge_dropout": 0.0,
    "feature_transform": "none",
}
NORMS = ("input_layer_norm", "attention_layer_norm")
PAPER = COMMON | {"alpha": 0.5, "gnn_input": "shared", "gnn_plain_last": False} | dict.fromkeys(NORMS, True)
PAPER |= {"value_map": True, "attention_residual": 0.5, "gnn_norm": "batch"}
MEDIUM = COMMON | {"alpha": 0.8, "gnn_input": "features", "gnn_plain_last": True} | dict.fromkeys(NORMS, False)
MEDIUM |= {"value_map": False, "attention_residual": 1.0, "gnn_norm": "none"}
STARTS: tuple[dict[str, Any], ...] = (
    MEDIUM,
    PAPER,
    MEDIUM | {"layers": 4},
    MEDIUM | {"attention_residual": 0.5, "value_map": True},
    MEDIUM | {"layers": 4, "learning_rate": 0.005, "gnn_weight_decay": 0.01, "weight_decay": 0.01, "attention_dropout": 0.3},
    MEDIUM | {"gnn_plain_last": False, "gnn_dropout": 0.7, "learning_rate": 0.005, "layers": 3},
    MEDIUM | {"gnn_plain_last": False, "gnn_norm": "layer", "gnn_layer_residual": True, "layers": 3},
    MEDIUM | {"feature_dropout": 0.5, "feature_transform": "row", "attention_dropout": 0.5},
)
"""The first trials after the defaults: the authors' settings for medium-sized graphs, the paper's model, variations, and the
settings of tuned GCNs."""

PLAIN = {"gnn_batch_norm": False, "gnn_layer_norm": False}


def free_settings(fixed: dict[str, Any], task: Task) -> dict[str, tuple[Any, ...]]:
    """The part of the space to search: the settings that are not fixed, and have a meaning for the task."""
    resolved = with_gnn_norm(PLAIN | fixed) if fixed.keys() & PLAIN.keys() else fixed
    meaningless = () if task == "multiclass" else ("label_smoothing",)
    return {name: choices for name, choices in SPACE.items() if name not in resolved and name not in meaningless}


def first_trials(
    data: LabelledGraph, free: dict[str, tuple[Any, ...]], begin: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The free settings of the first trials: those of `begin`, if given, then the defaults, then `STARTS`.

    Settings that `begin` does not have are the defaults. A value that the space does not have is left to the sampler.
    """
    begins = [] if begin is None else [begin]
    configs = [configurations(data, settings) for settings in (*begins, {})]
    starts = *(with_gnn_norm(asdict(config)) | asdict(training) for config, training in configs), *STARTS
    return [{name: start[name] for name, choices in free.items() if start[name] in choices} for start in starts]
