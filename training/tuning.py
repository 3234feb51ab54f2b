"""A search for good settings, by validation scores only (optuna).

The space is the paper's, plus feature normalisation and the switches in which its published variants differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from training import tasks
from training.labelled import LabelledGraph
from training.loop import train
from training.settings import configurations

SPACE: dict[str, tuple[Any, ...]] = {
    "learning_rate": (0.001, 0.005, 0.01, 0.05, 0.1),
    "weight_decay": (1e-5, 1e-4, 5e-4, 1e-3, 1e-2),
    "gnn_weight_decay": (1e-5, 1e-4, 5e-4, 1e-3, 1e-2),
    "hidden": (32, 64, 128, 256),
    "attention_dropout": (0.0, 0.2, 0.3, 0.5),
    "gnn_dropout": (0.0, 0.2, 0.3, 0.5),
    "alpha": (0.5, 0.8),
    "layers": (1, 2, 3, 4),
    "gnn_input": ("shared", "features"),
    "gnn_plain_last": (True, False),
    "gnn_batch_norm": (True, False),
    "input_layer_norm": (True, False),
    "attention_layer_norm": (True, False),
    "feature_transform": ("none", "row"),
}
COMMON: dict[str, Any] = {
    "learning_rate": 0.01,
    "weight_decay": 1e-3,
    "gnn_weight_decay": 5e-4,
    "hidden": 64,
    "attention_dropout": 0.2,
    "gnn_dropout": 0.5,
    "layers": 2,
    "feature_transform": "none",
}
NORMS = ("gnn_batch_norm", "input_layer_norm", "attention_layer_norm")
STARTS: tuple[dict[str, Any], ...] = (
    COMMON | {"alpha": 0.8, "gnn_input": "features", "gnn_plain_last": True} | dict.fromkeys(NORMS, False),
    COMMON | {"alpha": 0.5, "gnn_input": "shared", "gnn_plain_last": False} | dict.fromkeys(NORMS, True),
)
"""Tried first: the authors' variant for medium-sized graphs, and the paper's model, with ordinary settings."""


def tune(
    folds: Sequence[LabelledGraph],
    trials: int,
    *,
    fixed: dict[str, Any],
    on_trial: Callable[[int, float, dict[str, Any]], None] = lambda *_: None,
) -> tuple[dict[str, Any], float]:
    """The best settings and their mean validation score.

    Args:
        folds: the data, once per training seed. Pass the split that will be tested every time: the test nodes of one split
            are training nodes of another.
        fixed: settings that are not searched.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    free = {name: choices for name, choices in SPACE.items() if name not in fixed}

    def objective(trial: Any) -> float:
        settings = fixed | {name: trial.suggest_categorical(name, choices) for name, choices in free.items()}
        scores = []
        for seed, one in enumerate(folds):
            config, training = configurations(one, settings | {"seed": seed})
            scores.append(train(config, one, training).best.validation)
        mean = float(np.mean(scores))
        on_trial(trial.number + 1, mean, settings)
        return mean

    smaller = tasks.better(folds[0].metric, 0, 1)
    study = optuna.create_study(direction="minimize" if smaller else "maximize", sampler=optuna.samplers.TPESampler(seed=0))
    for start in STARTS:
        study.enqueue_trial({name: start[name] for name in free})
    study.optimize(objective, n_trials=trials)
    return fixed | study.best_params, float(study.best_value)
