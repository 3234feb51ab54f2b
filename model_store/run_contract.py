"""The contract between training and the service, which never import each other.

The service starts `python -m training` as a separate process. This module defines what the two exchange:

    run events   JSON lines that a training appends to a file (`--events FILE`) and the service follows
    overrides    the settings that a request to retrain may change; each is a flag of `python -m training` (`run_settings`)
    processes    how many processes share a training; torch's launcher (torchrun) starts them
    catalogue    the recipes and data sets of the installed training package (`run_settings`)
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from model_store.run_settings import OverridableSettings

JOB_KEY = "job"  # in `Manifest.training`: the id of the job that published the version
MAX_PROCESSES = 64
Processes = Annotated[int, Field(ge=1, le=MAX_PROCESSES)]
"""The bound fits one machine: each process loads torch, and more processes than cores make a training slower."""


class RunEvent(BaseModel):
    """A line of the events file: {"event": NAME, "at": TIME, ...} with the fields of a subclass."""

    model_config = ConfigDict(defer_build=True)  # a command writes events of few kinds

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


class Overrides(OverridableSettings, BaseModel):
    """Settings that override those of the recipe. The bounds limit the memory and time of one request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)
