"""Searches settings by validation scores only (optuna).

Trials can be stored in a file: a stopped search then continues, and several processes can share one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.data.labelled import LabelledGraph
from training.fit import tasks
from training.fit.loop import Stopped, TrainingError, train
from training.fit.search_space import first_trials, free_settings
from training.fit.settings import configurations, resolve_gnn_norm

SEARCH_RUNS = 2
"""Runs per trial. A trial whose first run is below the median of earlier first runs is pruned."""
FINALISTS = 3
FINAL_RUNS = 5
RANDOM_TRIALS = 8
"""Trials after which the sampler uses the scores so far. `first_trials` provides more, so few values are random."""
ABORT = 3
"""A stop level: the search ends without a choice."""

StopLevel = Callable[[], int]
"""0; 1 ends the trials; 2 ends the runs of the finalists, too; `ABORT`."""


@dataclass(frozen=True)
class SearchResult:
    """The best of the finalists."""

    settings: dict[str, Any]
    score: float | None
    """Mean validation score over `runs` runs; None if no trial was complete, and the settings are the defaults."""
    trials: int
    runs: int
    """Runs of each finalist; 0 if the finalists were not run again."""


class Search:
    """A search of settings for some splits of a graph.

    Args:
        folds: the data, once per split. Several splits share settings (as in the paper's tables); a test node of one may
            then be a training node of another.
        fixed: settings that are not searched.
        study: file of the trials.
        stop: checked after every epoch.
        begin: settings of the first trial of a new study.
        device: as for `train`.
    """

    def __init__(
        self,
        folds: Sequence[LabelledGraph],
        fixed: dict[str, Any],
        study: Path | None = None,
        stop: StopLevel = lambda: 0,
        begin: dict[str, Any] | None = None,
        device: str = "cpu",
    ) -> None:
        self._folds, self._fixed, self._stop, self._device = folds, fixed, stop, device
        self._smaller_is_better = tasks.better(folds[0].metric, 0, 1)
        self._free = free_settings(fixed, folds[0].task)
        self._first = first_trials(folds[0], self._free, begin)
        self._study = _open_study(study, self._smaller_is_better)
        if not self._study.trials:
            for settings in self._first:
                self._study.enqueue_trial(settings)

    @property
    def count(self) -> int:
        """The number of trials that are complete or pruned."""
        return sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in self._study.trials)

    def run_trials(self, trials: int, on_trial: Callable[[int, float], None] = lambda *_: None) -> None:
        """Runs trials until there are `trials`, those of other processes included, or until a stop.

        `on_trial` is called with the number and the score of a complete trial, when it is stored.
        """

        def report(_: Any, trial: Any) -> None:
            if trial.state.name == "COMPLETE":
                on_trial(trial.number + 1, trial.value)

        with suppress(Stopped):
            while not self._stop() and self.count < trials:
                self._study.optimize(self._trial_score, n_trials=1, callbacks=[report])

    def choose(self, on_finalists: Callable[[int], None] = lambda _: None) -> SearchResult:
        """Runs the best trials more often than the search did, because the best of many is partly chance.

        If a stop is requested while they run, or for the second time, the runs so far decide.

        Raises:
            Stopped: the stop level is `ABORT`.
            TrainingError: no trial is complete, and nothing has stopped the search.
        """
        complete = [trial for trial in self._study.trials if trial.state.name == "COMPLETE"]
        best = sorted(complete, key=lambda trial: trial.value, reverse=not self._smaller_is_better)[:FINALISTS]
        earlier = self._stop()
        if earlier >= ABORT:
            raise Stopped
        if not best and not earlier:
            raise TrainingError("no trial was completed: with these settings training diverges")
        if not best:
            return SearchResult(resolve_gnn_norm(self._fixed | self._first[0]), None, self.count, 0)
        finalists = [resolve_gnn_norm(self._fixed | trial.params) for trial in best]
        on_finalists(len(finalists))
        scores = self._final_scores(finalists, lambda: self._stop() > min(earlier, 1))
        means = [float(np.mean(runs)) for runs in scores] if scores[0] else [trial.value for trial in best]
        chosen = int(np.argmin(means) if self._smaller_is_better else np.argmax(means))
        return SearchResult(finalists[chosen], means[chosen], self.count, len(scores[0]))

    def _final_scores(self, finalists: Sequence[dict[str, Any]], stop: Callable[[], bool]) -> list[list[float]]:
        """The scores of each finalist in the runs that all of them have finished."""
        rounds: list[list[float]] = []
        with suppress(Stopped):
            while len(rounds) < FINAL_RUNS:
                rounds.append([self._validation(settings, len(rounds), stop) for settings in finalists])
        if self._stop() >= ABORT:
            raise Stopped
        return [[scores[number] for scores in rounds] for number in range(len(finalists))]

    def _trial_score(self, trial: Any) -> float:
        from optuna import TrialPruned

        settings = self._fixed | {name: trial.suggest_categorical(name, choices) for name, choices in self._free.items()}
        scores: list[float] = []
        for run in range(SEARCH_RUNS):
            try:
                scores.append(self._validation(settings, run, lambda: self._stop() > 0))
            except TrainingError as error:
                raise TrialPruned from error
            trial.report(float(np.mean(scores)), run)
            if run + 1 < SEARCH_RUNS and trial.should_prune():
                raise TrialPruned
        return float(np.mean(scores))

    def _validation(self, settings: dict[str, Any], run: int, stop: Callable[[], bool]) -> float:
        data = self._folds[run % len(self._folds)]
        config, training = configurations(data, settings | {"seed": run})
        return train(config, data, training, stop=stop, device=self._device).best.validation


def _open_study(file: Path | None, smaller_is_better: bool) -> Any:
    """The study of `optuna`, from its file or new."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns of stopped trials, with a traceback
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the two options of the sampler
        sampler = optuna.samplers.TPESampler(
            seed=None if file else 0, n_startup_trials=RANDOM_TRIALS, multivariate=True, constant_liar=True
        )
    return optuna.create_study(
        direction="minimize" if smaller_is_better else "maximize",
        sampler=sampler,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=RANDOM_TRIALS),
        storage=f"sqlite:///{file}" if file else None,
        study_name="settings",
        load_if_exists=True,
    )
