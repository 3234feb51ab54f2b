"""The record of one retraining: its request, its state, its result and their origin."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ACTIVE: tuple[State, ...] = ("queued", "running")


def _checked_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("expected a time with its offset from UTC")
    return text


Time = Annotated[str, AfterValidator(_checked_time)]


class Job(BaseModel):
    """Immutable; use `model_copy` for changes. Redis may hold records of any origin: what becomes a path is validated."""

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
    data: dict[str, Any] | None = Field(default=None, description="name and hash of what it was trained on")
    settings: dict[str, Any] | None = Field(default=None, description="of the model and the training, all of them")
    parent: int | None = Field(default=None, description="the version that was live when it began")
    warm_start: dict[str, Any] | None = None
    version: int | None = Field(default=None, description="the version that it published")
    snapshot: str | None = None
    scores: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = Field(default=None, description="of the gate, with its numbers")
    live: bool = Field(default=False, description="whether it went live")
    error: str | None = None
    cancel_requested: bool = False
    given_up: bool = Field(
        default=False, description="its worker was lost; `version` and `live` are what its training did nevertheless"
    )

    @classmethod
    def new(cls, model: str, request: dict[str, Any]) -> Job:
        return cls(id=secrets.token_hex(8), model=model, request=request, submitted_at=now())

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    def with_event(self, event: Mapping[str, Any]) -> Job:
        """The record after one event of the training."""
        changes: dict[str, Any] = {}
        match event.get("event"):
            case "data":
                data = {name: event[name] for name in ("name", "sha256")}
                changes = {"data": data} | {name: event[name] for name in ("settings", "parent", "warm_start")}
            case "epoch":
                changes = {"epoch": event["number"], "epochs": event["epochs"], "validation": event["validation"]}
            case "published":
                changes = {name: event[name] for name in ("version", "snapshot", "scores")}
            case "verdict":
                changes = {"verdict": {name: value for name, value in event.items() if name not in ("event", "at")}}
            case "activated":
                changes = {"live": True}
            case "failed":
                changes = {"error": event["error"]}
        return self.model_copy(update=changes)

    def ended(self, state: State, error: str | None = None) -> Job:
        return self.model_copy(update={"state": state, "error": error, "finished_at": now()})


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
