"""Searches settings by validation scores only (optuna).

The search space is that of the paper, plus feature normalisation and the switches in which its published variants differ.
Trials can be stored in a file: a stopped search then continues, and several processes can share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.data.labelled import LabelledGraph
from training.fit import tasks
from training.fit.loop import Stopped, TrainingError, train
from training.fit.settings import configurations

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
    "value_map": (True, False),
    "attention_residual": (0.5, 1.0),  # 1: no residual
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
PAPER = COMMON | {"alpha": 0.5, "gnn_input": "shared", "gnn_plain_last": False} | dict.fromkeys(NORMS, True)
PAPER |= {"value_map": True, "attention_residual": 0.5}
MEDIUM = COMMON | {"alpha": 0.8, "gnn_input": "features", "gnn_plain_last": True} | dict.fromkeys(NORMS, False)
MEDIUM |= {"value_map": False, "attention_residual": 1.0}
STARTS: tuple[dict[str, Any], ...] = (
    MEDIUM,
    PAPER,
    MEDIUM | {"layers": 4},
    MEDIUM | {"attention_residual": 0.5, "value_map": True},
    MEDIUM | {"layers": 4, "learning_rate": 0.005, "gnn_weight_decay": 0.01, "weight_decay": 0.01, "attention_dropout": 0.3},
)
"""The first trials: the authors' settings for medium-sized graphs, the paper's model, and variations of both."""

SEARCH_RUNS = 2
"""Runs per trial. A trial whose first run is below the median of earlier first runs is pruned."""
FINALISTS = 3
FINAL_RUNS = 5


@dataclass(frozen=True)
class SearchResult:
    """The best of the finalists."""

    settings: dict[str, Any]
    score: float
    """Mean validation score over `FINAL_RUNS` runs."""
    trials: int


def tune(
    folds: Sequence[LabelledGraph],
    trials: int,
    *,
    fixed: dict[str, Any],
    study: Path | None = None,
    on_trial: Callable[[int, float], None] = lambda *_: None,
    on_finalists: Callable[[int], None] = lambda _: None,
    stop_requests: Callable[[], int] = lambda: 0,
) -> SearchResult:
    """Runs `trials` trials, then runs the best few again.

    Args:
        folds: the data, once per split. Several splits share settings (as in the paper's tables); a test node of one may
            then be a training node of another.
        fixed: settings that are not searched.
        study: file of the trials.
        stop_requests: how many requests to stop have come. The first ends the search and runs the finalists, if a trial is
            complete. A second one, or one while the finalists run, raises `Stopped`.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns of stopped trials, with a traceback
    smaller = tasks.better(folds[0].metric, 0, 1)
    search = optuna.create_study(
        direction="minimize" if smaller else "maximize",
        sampler=optuna.samplers.TPESampler(seed=None if study else 0, n_startup_trials=20),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=8),
        storage=f"sqlite:///{study}" if study else None,
        study_name="settings",
        load_if_exists=True,
    )
    free = {name: choices for name, choices in SPACE.items() if name not in fixed}
    if not search.trials:
        for start in STARTS:
            search.enqueue_trial({name: start[name] for name in free})

    def objective(trial: Any) -> float:
        settings = fixed | {name: trial.suggest_categorical(name, choices) for name, choices in free.items()}
        score = _trial_score(trial, folds, settings, lambda: stop_requests() > 0)
        on_trial(trial.number + 1, score)
        return score

    with suppress(Stopped):
        while not stop_requests() and _count(search) < trials:
            search.optimize(objective, n_trials=1)
    complete: list[Any] = [trial for trial in search.trials if trial.state.name == "COMPLETE"]
    finalists = sorted(complete, key=lambda trial: trial.value, reverse=not smaller)[:FINALISTS]
    if not finalists and stop_requests():
        raise Stopped
    if not finalists:
        raise TrainingError("no trial was completed: with these settings training diverges")
    on_finalists(len(finalists))
    earlier = min(stop_requests(), 1)
    return _best([fixed | trial.params for trial in finalists], folds, _count(search), lambda: stop_requests() > earlier)


def _trial_score(trial: Any, folds: Sequence[LabelledGraph], settings: dict[str, Any], stop: Callable[[], bool]) -> float:
    from optuna import TrialPruned

    scores: list[float] = []
    for run in range(SEARCH_RUNS):
        try:
            scores.append(_validation(folds, settings, run, stop))
        except TrainingError as error:
            raise TrialPruned from error
        trial.report(float(np.mean(scores)), run)
        if run + 1 < SEARCH_RUNS and trial.should_prune():
            raise TrialPruned
    return float(np.mean(scores))


def _best(
    finalists: Sequence[dict[str, Any]], folds: Sequence[LabelledGraph], trials: int, stop: Callable[[], bool]
) -> SearchResult:
    """Runs the finalists more often than the search did, because the best of many trials is partly chance."""
    scores = [
        float(np.mean([_validation(folds, settings, run, stop) for run in range(FINAL_RUNS)])) for settings in finalists
    ]
    best = int(np.argmin(scores) if tasks.better(folds[0].metric, 0, 1) else np.argmax(scores))
    return SearchResult(finalists[best], scores[best], trials)


def _validation(folds: Sequence[LabelledGraph], settings: dict[str, Any], run: int, stop: Callable[[], bool]) -> float:
    data = folds[run % len(folds)]
    config, training = configurations(data, settings | {"seed": run})
    return train(config, data, training, stop=stop).best.validation


def _count(search: Any) -> int:
    return sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in search.trials)
