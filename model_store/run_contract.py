"""The contract between training and the service, which never import each other.

The service starts `python -m training` as a separate process. This module defines what the two exchange:

    run events   JSON lines that a training appends to a file (`--events FILE`) and the service follows
    overrides    the settings that a request to retrain may change; each is a flag of `python -m training`
    processes    how many processes share a training; torch's launcher (torchrun) starts them
    catalogue    the recipes and data sets of the installed training package
"""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field

from sgformer.config import FeatureTransform, GnnInput

Activation = Literal["never", "if_better", "always"]
JOB_KEY = "job"  # in `Manifest.training`: the id of the job that published the version
Schedule = Literal["constant", "cosine"]
GnnNorm = Literal["none", "batch", "layer"]
FeatureScaling = Literal["auto", FeatureTransform]  # auto: chosen by what the features are
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
MAX_PROCESSES = 64
Processes = Annotated[int, Field(ge=1, le=MAX_PROCESSES)]
"""The bound fits one machine: each process loads torch, and more processes than cores make a training slower."""


class RunEvent(BaseModel):
    """A line of the events file: {"event": NAME, "at": TIME, ...} with the fields of a subclass."""

    model_config = ConfigDict(defer_build=True)  # `sgf-train --help` imports this module, and needs no validators

    NAME: ClassVar[str]
    BY_NAME: ClassVar[dict[str, type[RunEvent]]] = {}

    def __init_subclass__(cls, event: str, **_: Any) -> None:
        cls.NAME = event
        RunEvent.BY_NAME[event] = cls

    def to_line(self) -> str:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        return json.dumps({"event": self.NAME, "at": at, **self.model_dump()})

    @staticmethod
    def parse(line: str) -> RunEvent | None:
        """None if the line is not an event, for example because a full disk truncated it."""
        with suppress(ValueError, RecursionError, KeyError, TypeError):
            content = json.loads(line)
            return RunEvent.BY_NAME[content["event"]].model_validate(content)
        return None


class StartedEvent(RunEvent, event="started"):
    pid: int


class DataEvent(RunEvent, event="data"):
    name: str
    sha256: str
    settings: dict[str, Any]
    parent: int | None  # the live version
    warm_start: dict[str, Any] | None
    features: list[str] | None = None


class EpochEvent(RunEvent, event="epoch"):
    number: int
    epochs: int
    loss: float
    validation: float
    metric: str


class PublishedEvent(RunEvent, event="published"):
    version: int
    snapshot: str
    scores: dict[str, Any]


class VerdictEvent(RunEvent, event="verdict"):
    """The verdict of the gate, with the numbers that it is based on."""

    better: bool
    reason: str
    live_version: int | None
    comparison: dict[str, Any] | None
    fair: bool | None
    fairness: str | None
    label_flips: float | None
    embedding_cosine: float | None
    compared_nodes: int
    probes: dict[str, float]


class ActivatedEvent(RunEvent, event="activated"):
    version: int


class FinishedEvent(RunEvent, event="finished"):
    result: dict[str, Any]


class StoppedEvent(RunEvent, event="stopped"): ...


class FailedEvent(RunEvent, event="failed"):
    error: str


class Overrides(BaseModel):
    """Settings that override those of the recipe. The bounds limit the memory and time of one request."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    hidden: Annotated[int, Field(ge=1, le=4096)] | None = None
    heads: Annotated[int, Field(ge=1, le=64)] | None = None
    layers: Annotated[int, Field(ge=0, le=64)] | None = None
    alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    attention_dropout: Share | None = None
    gnn_dropout: Share | None = None
    learning_rate: Rate | None = None
    weight_decay: Rate | None = None
    gnn_weight_decay: Rate | None = None
    label_smoothing: Share | None = None
    feature_dropout: Share | None = None
    edge_dropout: Share | None = None
    schedule: Schedule | None = None
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    patience: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    batch_nodes: Annotated[int, Field(ge=2, le=2**31)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    gnn_input: GnnInput | None = None
    gnn_norm: GnnNorm | None = None
    gnn_layer_residual: bool | None = None
    gnn_plain_last: bool | None = None
    value_map: bool | None = None
    attention_residual: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    input_layer_norm: bool | None = None
    attention_layer_norm: bool | None = None
    feature_transform: FeatureScaling | None = None


# The type of each setting: int, float, bool or a Literal.
OVERRIDE_TYPES: dict[str, Any] = {
    name: get_args(hint)[0] for name, hint in get_type_hints(Overrides).items() if name in Overrides.model_fields
}


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
