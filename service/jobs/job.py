"""The record of one retraining: its request, state, progress and result."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from model_store import run_contract

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]


def _check_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("expected a time with its offset from UTC")
    return text


Time = Annotated[str, AfterValidator(_check_time)]


class Job(BaseModel):
    """Immutable; `model_copy` makes changed copies. Fields that become parts of paths are validated, because other
    programs may write to the Redis that records are read from.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field(pattern="^[0-9a-f]{16}$")
    model: str = Field(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")
    state: State = "queued"
    request: dict[str, Any] = Field(description="the submission, defaults filled in")
    submitted_at: Time
    started_at: Time | None = None
    finished_at: Time | None = None
    epoch: int = 0
    epochs: int | None = None
    validation: float | None = Field(default=None, description="the validation score of the last epoch")
    data: dict[str, Any] | None = Field(default=None, description="name and hash of the training data")
    settings: dict[str, Any] | None = Field(default=None, description="all settings of the model and the training")
    parent: int | None = Field(default=None, description="the version that was live when the training started")
    warm_start: dict[str, Any] | None = None
    version: int | None = Field(default=None, description="the version that the job published")
    snapshot: str | None = None
    scores: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = Field(default=None, description="the verdict of the gate, with its numbers")
    live: bool = Field(default=False, description="whether the version went live")
    error: str | None = None
    cancel_requested: bool = False
    given_up: bool = Field(
        default=False,
        description="the job was abandoned because its worker was lost; its training may still set `version` and `live`",
    )

    @classmethod
    def new(cls, model: str, request: dict[str, Any]) -> Job:
        return cls(id=secrets.token_hex(8), model=model, request=request, submitted_at=_now())

    @property
    def active(self) -> bool:
        return self.state in ("queued", "running")

    def started(self) -> Job:
        return self.model_copy(update={"state": "running", "started_at": _now()})

    def ended(self, state: State, error: str | None = None) -> Job:
        return self.model_copy(update={"state": state, "error": error, "finished_at": _now()})

    def updated_by(self, event: run_contract.RunEvent) -> Job:
        changes: dict[str, Any] = {}
        match event:
            case run_contract.DataEvent():
                changes = {"settings": event.settings, "parent": event.parent, "warm_start": event.warm_start}
                changes["data"] = {"name": event.name, "sha256": event.sha256}
            case run_contract.EpochEvent():
                changes = {"epoch": event.number, "epochs": event.epochs, "validation": event.validation}
            case run_contract.PublishedEvent():
                changes = event.model_dump()
            case run_contract.VerdictEvent():
                changes = {"verdict": event.model_dump()}
            case run_contract.ActivatedEvent():
                changes = {"live": True}
            case run_contract.FailedEvent():
                changes = {"error": event.error}
        return self.model_copy(update=changes)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
