"""A search for good settings, by validation scores only (optuna).

The space is the paper's, plus feature normalisation and the switches in which its published variants differ. Trials can be
kept in a file: then a search that was stopped goes on, and several processes can share one.
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
    "attention_residual": (0.5, 1.0),  # 1 leaves the residual out
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
"""Tried first: the variant of the authors' commands for medium-sized graphs, the paper's model, and neighbours of both."""

SEARCH_RUNS = 2
"""Runs per trial. A trial whose first run is below the median of the first runs before it gets no second."""
FINALISTS = 3
FINAL_RUNS = 5


@dataclass(frozen=True)
class Found:
    """What a search came to: the best of the finalists."""

    settings: dict[str, Any]
    score: float
    """Its mean validation score over `FINAL_RUNS` runs."""
    trials: int


def tune(
    folds: Sequence[LabelledGraph],
    trials: int,
    *,
    fixed: dict[str, Any],
    study: Path | None = None,
    on_trial: Callable[[int, float], None] = lambda *_: None,
    on_finalists: Callable[[int], None] = lambda _: None,
    stops: Callable[[], int] = lambda: 0,
) -> Found:
    """Searches until there are `trials` of them, then runs the best few again.

    Args:
        folds: the data, once per split. A split that will be tested may not be mixed with others whose training nodes it
            tests, unless settings are meant to be shared by all of them (as in the paper's tables).
        fixed: settings that are not searched.
        study: where the trials are kept.
        stops: how often somebody has asked to stop. Once ends the search, and the best few are run again at once, if a trial
            has come to an end. Twice, or once more while they are run, raises `Stopped`.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # its warnings are of trials that were stopped, with a traceback
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
        score = _trial_score(trial, folds, settings, lambda: stops() > 0)
        on_trial(trial.number + 1, score)
        return score

    with suppress(Stopped):
        while not stops() and _count(search) < trials:
            search.optimize(objective, n_trials=1)
    finalists = sorted(_complete(search), key=lambda trial: trial.value, reverse=not smaller)[:FINALISTS]
    if not finalists and stops():
        raise Stopped
    if not finalists:
        raise TrainingError("no trial came to an end: with these settings training comes apart")
    on_finalists(len(finalists))
    heard = min(stops(), 1)
    return _best([fixed | trial.params for trial in finalists], folds, _count(search), lambda: stops() > heard)


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
) -> Found:
    """By more runs than the search could afford: the best of many trials is in part the luckiest."""
    scores = [
        float(np.mean([_validation(folds, settings, run, stop) for run in range(FINAL_RUNS)])) for settings in finalists
    ]
    best = 0
    for number in range(1, len(scores)):
        if tasks.better(folds[0].metric, scores[number], scores[best]):
            best = number
    return Found(finalists[best], scores[best], trials)


def _validation(folds: Sequence[LabelledGraph], settings: dict[str, Any], run: int, stop: Callable[[], bool]) -> float:
    data = folds[run % len(folds)]
    config, training = configurations(data, settings | {"seed": run})
    return train(config, data, training, stop=stop).best.validation


def _complete(search: Any) -> list[Any]:
    return [trial for trial in search.trials if trial.state.name == "COMPLETE"]


def _count(search: Any) -> int:
    return sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in search.trials)
