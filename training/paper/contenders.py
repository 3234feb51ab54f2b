"""What the tables run on the same splits: our model, and what it is compared with.

    SGFormer            the recipe of the data set
    GCN                 the graph branch alone: the recipe NAME-gcn if there is one, else the recipe with alpha 1
    PyG's SGFormer      PyTorch Geometric's model with its defaults, and the training settings of the recipe
    linear model        logistic regression of the features, without the graph
    majority class      the most frequent training label

With fewer or more training labels than a data set's usual split has, its recipe may be another one (`recipe_for`).

For research only: nothing here is served.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from model_store.run_settings import recipe_names
from training.fit.settings import configurations, read_recipe

if TYPE_CHECKING:
    from training.data.labelled import LabelledGraph

OURS, GCN, PYG, LINEAR, MAJORITY = "SGFormer", "GCN", "PyG's SGFormer", "linear model", "majority class"
MODELS = (OURS, GCN, PYG, LINEAR, MAJORITY)
Settings = dict[str, Any]
FEW_LABELS = 0.1
"""The share of training nodes from which on `recipe_for` does not count labels as few."""


class Run(NamedTuple):
    """Scores in per cent. A baseline without training has no validation score."""

    test: float
    validation: float | None = None
    epoch_seconds: float | None = None
    """Of research models: mean time of an epoch, with its evaluation."""


@dataclass(frozen=True)
class Contender:
    label: str
    settings: Settings
    run: Callable[[LabelledGraph, Settings, int], Run]
    """Takes the data, the settings and a seed."""
    search: str
    """How the settings were chosen."""
    random: bool = True
    """Whether seeds give different scores on the same split."""

    def digest(self) -> str:
        """Of the settings: a stored score with another digest is not reused."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:16]


def contenders(recipe: str) -> list[Contender]:
    settings, note = read_recipe(recipe).settings, _one_line(read_recipe(recipe).note)
    return [
        ours(recipe),
        gcn(recipe),
        Contender(PYG, settings, run_pyg, f"none; training settings: {note}"),
        *simple(recipe),
    ]


def ours(recipe: str, label: str = OURS, **changes: Any) -> Contender:
    read = read_recipe(recipe)
    return Contender(label, read.settings | changes, run_ours, _one_line(read.note))


def recipe_for(dataset: str, share: float) -> str:
    """The recipe for a share of training nodes: NAME-few-labels or NAME-many-labels if there is one, else that of the data
    set.
    """
    own = f"{dataset}-{'few' if share < FEW_LABELS else 'many'}-labels"
    return own if own in recipe_names() else dataset


def gcn(recipe: str) -> Contender:
    own = f"{recipe}-gcn"
    if own in recipe_names():
        return ours(own, GCN)
    read = read_recipe(recipe)
    return Contender(GCN, read.settings | {"alpha": 1.0}, run_ours, "none of its own: the recipe of SGFormer with alpha 1")


def simple(recipe: str) -> list[Contender]:
    transform = {"feature_transform": read_recipe(recipe).settings["feature_transform"]}
    return [Contender(label, transform, run_simple(label), "none", random=False) for label in (LINEAR, MAJORITY)]


def run_ours(data: LabelledGraph, settings: Settings, seed: int) -> Run:
    """The test score of the best epoch by validation."""
    from training.fit.loop import train  # here, as below: the help must not wait for torch

    config, training = configurations(data, settings | {"seed": seed})
    trained = train(config, data, training)
    return Run(100 * trained.scores["test"][data.metric], 100 * trained.best.validation)


def run_pyg(data: LabelledGraph, settings: Settings, seed: int) -> Run:
    from training.paper.pyg_sgformer import train_pyg

    return train_pyg(data, settings, seed)


def variant(recipe: str, label: str, function: str, depth: int = 1) -> Contender:
    """The recipe with another attention function, or with several attention layers."""

    def run(data: LabelledGraph, settings: Settings, seed: int) -> Run:
        from training.paper.attention_variants import train_variant

        return train_variant(data, settings, seed, function, depth)  # type: ignore[arg-type]  # the names of the tables

    read = read_recipe(recipe)
    return Contender(label, read.settings, run, f"none of its own: {_one_line(read.note)}")


def run_simple(label: str) -> Callable[[LabelledGraph, Settings, int], Run]:
    def run(data: LabelledGraph, settings: Settings, _seed: int) -> Run:
        from training.fit.baselines import baselines

        scores = baselines(data, settings["feature_transform"], [data.metric])[label]
        if "skipped" in scores:
            raise ValueError(f"{data.name}, {label}: {scores['skipped']}")
        return Run(100 * scores[data.metric])

    return run


def _one_line(note: str) -> str:
    return " ".join(note.split())
