"""Graphs that no recipe was made for: how far results without tuning are from those of a search for settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_store.publish.graph_file import read_graph_file
from training.data.labelled import LabelledGraph

UNSEEN = ("acm", "cora_ml", "blogcatalog", "flickr", "dblp")
"""`more/NAME.npz` below the data root: a graph in the layout of `graph.npz` (docs/own_data.md), and `splits`, (3, N):
0 training, 1 validation, 2 test."""
SPLITS = 3
TRIALS = 40
SEARCH = {"epochs": 300, "patience": 50}
"""Fixed in the search. All other settings are those that `search_space.SPACE` has."""
DEFAULTS, SEARCHED = "defaults", f"{TRIALS}-trial search"
TOLERANCE = 1.0
"""In percentage points: how far below the mean score of the search that of the defaults may be."""
STUDIES = Path("build") / "trials"


def load_unseen(name: str, split: int) -> LabelledGraph:
    from training.data.datasets import data_root  # here, as `tune` below: it loads torch, and `--help` must not
    from training.data.datasets.files import read_npz

    path = data_root() / "more" / f"{name}.npz"
    arrays = read_npz(path)
    graph = read_graph_file(path).graph
    return LabelledGraph(name, graph, arrays["y"].astype(np.int64), arrays["splits"][split % SPLITS].astype(np.int8))


def untuned_settings(name: str) -> dict[str, Any]:
    """All settings of a training without flags, so that scores of other defaults are not taken for those of the present."""
    from training.fit.settings import TrainingConfig, defaults_for

    return asdict(TrainingConfig()) | defaults_for(load_unseen(name, 0), {})[1]


@dataclass(frozen=True)
class SearchProgress:
    """The trials of a search that is not finished. Scores are of validation, in per cent."""

    trials: int
    defaults: float
    """Of the first trial, which has the default settings."""
    best: float
    settings: dict[str, Any]
    """Of the best trial. The file of the trials stays on the machine of the search, this goes into the results."""


OnProgress = Callable[[SearchProgress], None]


def searched_settings(name: str, on_progress: OnProgress) -> dict[str, Any]:
    """The best settings by validation on the three splits together. A stopped search continues."""
    from training.fit.tuning import Search

    STUDIES.mkdir(parents=True, exist_ok=True)
    folds, study = [load_unseen(name, split) for split in range(SPLITS)], STUDIES / f"{name}.db"
    search = Search(folds, SEARCH, study)
    search.run_trials(TRIALS, lambda *_: on_progress(search_progress(study)))
    return search.choose().settings


def search_progress(study: Path) -> SearchProgress:
    """Of a file of trials, of which the first is complete."""
    import optuna

    search = optuna.load_study(study_name="settings", storage=f"sqlite:///{study}")
    states = [trial.state.name for trial in search.trials]
    complete = [trial.value for trial in search.trials if trial.state.name == "COMPLETE" and trial.value is not None]
    count, settings = states.count("PRUNED") + len(complete), search.best_trial.params
    return SearchProgress(count, 100 * complete[0], 100 * max(complete), settings)
