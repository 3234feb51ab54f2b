"""What a run is trained with: defaults, a recipe over them, and flags over both.

A recipe is a small TOML file in `recipes/`: the data set, the model, the training, and a note of how it was chosen.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sgformer import ConfigError, ModelConfig
from training.labelled import LabelledGraph
from training.loop import TrainingConfig

RECIPES = Path(__file__).parent / "recipes"
MODEL_SETTINGS = {field.name for field in fields(ModelConfig)} - {"in_features", "out_features", "task"}
TRAINING_SETTINGS = {field.name for field in fields(TrainingConfig)}
DEFAULTS: dict[str, Any] = {"attention_dropout": 0.2, "gnn_dropout": 0.5}


@dataclass(frozen=True)
class Recipe:
    name: str
    dataset: str
    settings: dict[str, Any]
    """Of the model and of the training, together: their names do not clash."""
    note: str


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def read_recipe(name: str) -> Recipe:
    """Raises ConfigError for a recipe that is not there or that has a setting that nothing reads."""
    if name not in recipe_names():
        raise ConfigError(f"there is no recipe {name!r}, expected one of {', '.join(recipe_names())}")
    content = tomllib.loads((RECIPES / f"{name}.toml").read_text())
    settings = content.get("model", {}) | content.get("training", {})
    if unknown := sorted(set(settings) - MODEL_SETTINGS - TRAINING_SETTINGS):
        raise ConfigError(f"recipe {name} has unknown settings: {', '.join(unknown)}")
    return Recipe(name, content["dataset"], settings, content["note"])


def configurations(data: LabelledGraph, settings: dict[str, Any]) -> tuple[ModelConfig, TrainingConfig]:
    """The two configurations for this data; what `settings` do not say is left to the defaults."""
    model = {name: value for name, value in (DEFAULTS | settings).items() if name in MODEL_SETTINGS}
    config = ModelConfig(in_features=data.graph.num_features, out_features=data.num_outputs, task=data.task, **model)
    return config, training_config(settings)


def training_config(settings: dict[str, Any]) -> TrainingConfig:
    return TrainingConfig(**{name: value for name, value in settings.items() if name in TRAINING_SETTINGS})
