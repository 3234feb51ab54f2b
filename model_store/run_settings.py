"""The settings of a training that a request may override, and the catalogue of recipes and data sets.

Part of the contract in `run_contract.py`. `sgf-train --help` needs this part only, so it imports no pydantic.
"""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from annotated_types import Interval

from sgformer.config import FeatureTransform, GnnInput

Activation = Literal["never", "if_better", "always"]
Schedule = Literal["constant", "cosine"]
GnnNorm = Literal["none", "batch", "layer"]
FeatureScaling = Literal["auto", FeatureTransform]  # auto: chosen by the kind of the features
Structural = Literal["degree", "random"]
Share = Annotated[float, Interval(ge=0, lt=1)]
Rate = Annotated[float, Interval(ge=0, le=10)]


class OverridableSettings:
    """The fields of `run_contract.Overrides`, which validates them."""

    hidden: Annotated[int, Interval(ge=1, le=4096)] | None = None
    heads: Annotated[int, Interval(ge=1, le=64)] | None = None
    layers: Annotated[int, Interval(ge=0, le=64)] | None = None
    alpha: Annotated[float, Interval(ge=0, le=1)] | None = None
    attention_dropout: Share | None = None
    gnn_dropout: Share | None = None
    learning_rate: Rate | None = None
    weight_decay: Rate | None = None
    gnn_weight_decay: Rate | None = None
    label_smoothing: Share | None = None
    feature_dropout: Share | None = None
    edge_dropout: Share | None = None
    schedule: Schedule | None = None
    epochs: Annotated[int, Interval(ge=1, le=1_000_000)] | None = None
    patience: Annotated[int, Interval(ge=1, le=1_000_000)] | None = None
    batch_nodes: Annotated[int, Interval(ge=2, le=2**31)] | None = None
    seed: Annotated[int, Interval(ge=0, lt=2**32)] | None = None
    gnn_input: GnnInput | None = None
    gnn_norm: GnnNorm | None = None
    gnn_layer_residual: bool | None = None
    gnn_plain_last: bool | None = None
    value_map: bool | None = None
    attention_residual: Annotated[float, Interval(ge=0, le=1)] | None = None
    input_layer_norm: bool | None = None
    attention_layer_norm: bool | None = None
    feature_transform: FeatureScaling | None = None


OVERRIDE_TYPES: dict[str, Any] = {name: get_args(hint)[0] for name, hint in get_type_hints(OverridableSettings).items()}
"""The type of each setting: int, float, bool or a Literal."""


def override_flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def training_folder() -> Path:
    """Returns the folder of the package `training` without importing it.

    If the package is not installed, returns a path that does not exist.
    """
    spec = find_spec("training")
    return Path(*(spec.submodule_search_locations or ())) if spec else Path("training is not installed")


def recipe_names() -> list[str]:
    return sorted(path.stem for path in (training_folder() / "recipes").glob("*.toml"))


def dataset_descriptions() -> dict[str, dict[str, Any]]:
    file = training_folder() / "data" / "datasets" / "datasets.toml"
    return tomllib.loads(file.read_text()) if file.is_file() else {}
