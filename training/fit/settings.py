"""The settings of a run: defaults, overridden by a recipe, overridden by flags.

A recipe is a TOML file in `recipes/`: a data set, settings of the model and of the training, and how they were chosen.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from model_store.run_contract import recipe_names, training_folder
from sgformer import ConfigError, ModelConfig
from training.data.labelled import LabelledGraph
from training.fit.loop import TrainingConfig

MODEL_SETTINGS = {field.name for field in fields(ModelConfig)} - {"in_features", "out_features", "task"}
TRAINING_SETTINGS = {field.name for field in fields(TrainingConfig)}
DEFAULTS: dict[str, Any] = {"attention_dropout": 0.2, "gnn_dropout": 0.5}


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
        raise ConfigError(f"there is no recipe {name!r}, expected a file.toml or one of {', '.join(recipe_names())}")
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


def configurations(data: LabelledGraph, settings: dict[str, Any]) -> tuple[ModelConfig, TrainingConfig]:
    """The configurations of model and training for this data, with defaults for what `settings` does not have."""
    model = {name: value for name, value in (DEFAULTS | settings).items() if name in MODEL_SETTINGS}
    config = ModelConfig(in_features=data.graph.num_features, out_features=data.num_outputs, task=data.task, **model)
    return config, training_config(settings)


def training_config(settings: dict[str, Any]) -> TrainingConfig:
    return TrainingConfig(**{name: value for name, value in settings.items() if name in TRAINING_SETTINGS})
