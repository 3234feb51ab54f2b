"""One retraining, as everybody sees it: what was asked, what came of it, and from what."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ACTIVE: tuple[State, ...] = ("queued", "running")


class Job(BaseModel):
    """Changed by `model_copy` only: a record that was read stays as it was."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    model: str
    state: State = "queued"
    request: dict[str, Any] = Field(description="the submission, defaults filled in")
    submitted_at: str
    started_at: str | None = None
    finished_at: str | None = None
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
        default=False, description="its worker fell silent; version and live say what its training did all the same"
    )

    @classmethod
    def new(cls, model: str, request: dict[str, Any]) -> Job:
        return cls(id=secrets.token_hex(8), model=model, request=request, submitted_at=now())

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    def with_event(self, event: Mapping[str, Any]) -> Job:
        """What one line of the training's events changes."""
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
