"""The settings of a run: defaults, overridden by a recipe, overridden by flags.

A recipe is a TOML file in `recipes/`: a data set, settings of the model and of the training, and how they were chosen.
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from model_store.run_settings import Schedule, recipe_names, training_folder
from model_store.suggestions import did_you_mean
from sgformer import ConfigError, ModelConfig

if TYPE_CHECKING:
    from training.data.labelled import LabelledGraph
    from training.fit.feature_scaling import ScalingChoice


@dataclass(frozen=True)
class TrainingConfig:
    epochs: int = 1000
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    """For the attention branch and the input layer."""
    gnn_weight_decay: float = 5e-4
    batch_nodes: int | None = None
    """Nodes per mini-batch; None trains on the full graph."""
    patience: int | None = 100
    """Training stops after this many epochs without a better validation score; None: it does not stop early."""
    label_smoothing: float = 0.0
    """The share of a node's label that is spread over all classes in the loss; for classes only."""
    schedule: Schedule = "constant"
    """Of the learning rate. `cosine`: it falls to 0 over `epochs` along half a cosine."""
    feature_dropout: float = 0.0
    """The share of the feature values that a training step does not read."""
    edge_dropout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("seed", 0), ("batch_nodes", 2), ("patience", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        for name in ("learning_rate", "weight_decay", "gnn_weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")
        for name in ("label_smoothing", "feature_dropout", "edge_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if self.schedule not in get_args(Schedule):
            raise ConfigError(f"schedule must be one of {', '.join(get_args(Schedule))}, got {self.schedule!r}")

    def learning_rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0. It depends on nothing else, so a resumed run needs no state."""
        share = epoch / self.epochs if self.schedule == "cosine" else 0.0
        return self.learning_rate * (1 + math.cos(math.pi * share)) / 2


MODEL_SETTINGS = {field.name for field in fields(ModelConfig)} - {"in_features", "out_features", "task"}
TRAINING_SETTINGS = {field.name for field in fields(TrainingConfig)}
DEFAULTS: dict[str, Any] = {
    "alpha": 0.5,
    "gnn_input": "features",
    "gnn_plain_last": True,
    "gnn_batch_norm": False,
    "input_layer_norm": False,
    "attention_layer_norm": False,
    "attention_dropout": 0.5,
    "gnn_dropout": 0.5,
    "feature_transform": "auto",
}
"""Settings of the model that apply unless a recipe or a flag sets them. The defaults of `ModelConfig` are the paper's model;
these combine the paper's attention with the GCN of the authors' code for medium-sized graphs. docs/results.md describes how
they were chosen."""
GNN_NORMS = {"none": (False, False), "batch": (True, False), "layer": (False, True)}
"""`gnn_batch_norm` and `gnn_layer_norm` by the name of the flag `--gnn-norm`."""
TABLE_DEFAULTS: dict[str, Any] = {"gnn_batch_norm": True, "attention_dropout": 0.3, "gnn_dropout": 0.3}
"""The defaults that differ if the features are the columns of a table (`is_table`), not words."""
DENSE_DEFAULTS: dict[str, Any] = {"gnn_batch_norm": True, "gnn_layer_residual": True, "gnn_plain_last": False}
"""The defaults that differ if the features are words and the graph is dense. A GCN layer is a mean over the neighbours: over
many neighbours, its values hardly differ between nodes. The norm brings the differences back to scale, and the residual
keeps the node's own state. They apply together, or not at all if a recipe or a flag has one of them."""
DENSE_DEGREE = 30.0
"""The smallest mean number of neighbours in a dense graph."""


@dataclass(frozen=True)
class Recipe:
    name: str
    dataset: str
    settings: dict[str, Any]
    """Of the model and of the training; no name is in both."""
    note: str


def read_recipe(name: str) -> Recipe:
    """Reads a recipe of this package by its name, or a user's recipe by its path, which ends in .toml.

    Raises:
        ConfigError: the recipe does not exist, is not TOML, or has an unknown setting.
    """
    recipes = training_folder() / "recipes"
    path = Path(name) if name.endswith(".toml") else recipes / f"{name}.toml"
    if not path.is_file() or (path.parent == recipes and path.stem not in recipe_names()):
        expected = f"expected a file.toml or one of {', '.join(recipe_names())}{did_you_mean(name, recipe_names())}"
        raise ConfigError(f"there is no recipe {name!r}, {expected}")
    try:
        content = tomllib.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"recipe {name} is not TOML: {error}") from error
    if missing := [key for key in ("dataset", "note") if not isinstance(content.get(key), str)]:
        raise ConfigError(f"recipe {name} has no {missing[0]}")
    settings = content.get("model", {}) | content.get("training", {})
    if unknown := sorted(set(settings) - MODEL_SETTINGS - TRAINING_SETTINGS):
        raise ConfigError(f"recipe {name} has unknown settings: {', '.join(unknown)}")
    return Recipe(name, content["dataset"], settings, content["note"])


def write_recipe(path: Path, recipe: Recipe) -> None:
    lines = [f"dataset = {json.dumps(recipe.dataset)}", f'note = """\n{recipe.note}\n"""']
    for table, names in (("model", MODEL_SETTINGS), ("training", TRAINING_SETTINGS)):
        # Strings, numbers and booleans have the same syntax in JSON and TOML.
        values = [f"{name} = {json.dumps(value)}" for name, value in recipe.settings.items() if name in names]
        lines += ["", f"[{table}]", *values]
    path.write_text("\n".join(lines) + "\n")


def default_settings() -> dict[str, Any]:
    """The value of every setting that neither a recipe nor a flag sets, for `--help`; None if there is no fixed value."""
    defaults = {setting.name: setting.default for setting in (*fields(ModelConfig), *fields(TrainingConfig))} | DEFAULTS
    defaults = with_gnn_norm(defaults)
    for kind, changes in (("tables", TABLE_DEFAULTS), ("words in dense graphs", DENSE_DEFAULTS)):
        others = with_gnn_norm(DEFAULTS | changes)
        defaults |= {name: f"{defaults[name]}, for {kind} {others[name]}" for name in ("gnn_norm", *changes)}
    return defaults


def with_gnn_norm(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model with `gnn_norm` beside the two switches that it stands for."""
    switches = settings["gnn_batch_norm"], settings.get("gnn_layer_norm", False)
    return settings | {"gnn_norm": next(name for name, values in GNN_NORMS.items() if values == switches)}


def resolve_gnn_norm(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the two switches that `gnn_norm` stands for in its place. It overrides them."""
    if "gnn_norm" not in settings:
        return settings
    batch, layer = GNN_NORMS[settings["gnn_norm"]]
    others = {name: value for name, value in settings.items() if name != "gnn_norm"}
    return others | {"gnn_batch_norm": batch, "gnn_layer_norm": layer}


def defaults_for(data: LabelledGraph, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of the data, and the defaults of the model for it if a recipe and flags have these settings."""
    from training.fit.feature_scaling import is_table  # here, as below: it loads numpy, and `--help` must not

    if is_table(data.graph.features):
        return "a table", DEFAULTS | TABLE_DEFAULTS
    is_dense = 2 * data.graph.num_edges >= DENSE_DEGREE * data.graph.num_nodes
    if is_dense and not DENSE_DEFAULTS.keys() & resolve_gnn_norm(settings).keys():
        return "words in a dense graph", DEFAULTS | DENSE_DEFAULTS
    return "words", DEFAULTS


def describe_defaults(data: LabelledGraph, settings: dict[str, Any]) -> str | None:
    """The defaults that depend on the data and are not in `settings`; None if there are none."""
    kind, defaults = defaults_for(data, settings)
    names = DENSE_DEFAULTS | TABLE_DEFAULTS if DENSE_DEFAULTS.items() <= defaults.items() else TABLE_DEFAULTS
    chosen = {name: defaults[name] for name in names if name not in resolve_gnn_norm(settings)}
    return f"for {kind}: {', '.join(f'{name} {json.dumps(value)}' for name, value in chosen.items())}" if chosen else None


def configurations(data: LabelledGraph, settings: dict[str, Any]) -> tuple[ModelConfig, TrainingConfig]:
    """The configurations of model and training for this data, with defaults for what `settings` does not have."""
    _, defaults = defaults_for(data, settings)
    settings = defaults | resolve_gnn_norm(settings) | {"feature_transform": feature_scaling(data, settings).transform}
    model = {name: value for name, value in settings.items() if name in MODEL_SETTINGS}
    config = ModelConfig(in_features=data.graph.num_features, out_features=data.num_outputs, task=data.task, **model)
    training = training_config(settings)
    if training.label_smoothing and data.task != "multiclass":
        raise ConfigError(f"label_smoothing is for one class per node, and the task is {data.task}")
    return config, training


def feature_scaling(data: LabelledGraph, settings: dict[str, Any]) -> ScalingChoice:
    from training.fit.feature_scaling import ScalingChoice, choose_scaling

    transform = (DEFAULTS | settings)["feature_transform"]
    return choose_scaling(data.graph.features) if transform == "auto" else ScalingChoice(transform, "as set")


def training_config(settings: dict[str, Any]) -> TrainingConfig:
    return TrainingConfig(**{name: value for name, value in settings.items() if name in TRAINING_SETTINGS})
