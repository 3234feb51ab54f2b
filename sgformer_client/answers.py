"""What answers look like: for the OpenAPI document and for typed clients. The service itself encodes arrays (`encoding`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NodeId = int | str


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class LikelyClass(_Answer):
    label: int
    class_name: str = Field(alias="class")
    probability: float


class Prediction(_Answer):
    """Which fields are there depends on the model's task and on what was asked for."""

    node: NodeId
    label: int | None = None
    class_name: str | None = Field(default=None, alias="class")
    labels: list[int] | None = Field(default=None, description="multi-label: those that apply")
    classes: list[str] | None = Field(default=None, description="multi-label: their names")
    value: float | list[float] | None = Field(default=None, description="regression")
    probabilities: list[float] | None = None
    top_k: list[LikelyClass] | None = None
    embedding: list[float] | None = None
    exactness: Literal["exact", "frozen", "rounded"] = Field(
        description="rounded: exact but for the rounding of half-precision states (rounding_error)"
    )


class Origin(_Answer):
    """Where an answer comes from."""

    model: str
    version: int
    snapshot: str = Field(description="content hash of the snapshot that gave this answer")


class PredictAnswer(Origin):
    """Known nodes first, then new ones, in the order asked."""

    rounding_error: float | None = Field(
        default=None, description="largest error of rounded answers, measured when the snapshot was published"
    )
    predictions: list[Prediction]


class Live(_Answer):
    status: Literal["live"] = "live"


class Ready(Origin):
    status: Literal["ready"] = "ready"


class ServedVersion(Origin):
    """What this worker answers from."""

    engine: str = Field(examples=["numpy"])
    loading_seconds: dict[str, float] = Field(description="by step")


class Failure(_Answer):
    """Why a worker could not take a version into service; without one there was none to take."""

    version: int | None
    error: str
    at: str


class RollBack(_Answer):
    left: int | None = Field(alias="from")
    to: int
    why: str | None = Field(description="where a version was left by itself; null where somebody asked for it")
    at: str


class StoredVersion(_Answer):
    """A damaged one has only its number, and what ails it."""

    version: int
    live: bool
    snapshot: str | None = None
    created: str | None = None
    nodes: int | None = None
    edges: int | None = None
    scores: dict[str, Any] | None = None
    damaged: str | None = None


class ModelsAnswer(_Answer):
    serving: ServedVersion | None
    failure: Failure | None = Field(description="of the last look; null once a version could be taken")
    probation: int | None = Field(description="the version that is left by itself if it fails too often")
    problem: str | None = Field(default=None, description="what is damaged in the store's record of live versions")
    rolled_back: RollBack | None = Field(description="if that is how the live version became live")
    versions: list[StoredVersion]


class ManifestAnswer(Origin):
    """`manifest.json` of a version (docs/snapshot_format.md)."""

    format: int
    created: str
    config: dict[str, Any]
    nodes: int
    edges: int
    node_ids: str | None = Field(description="the type of the graph's own ids; null where they are 0 to N - 1")
    classes: list[str] | None
    dataset: dict[str, Any]
    training: dict[str, Any]
    scores: dict[str, Any]
    states: dict[str, Any]
    probe_tolerance: float
    onnx: dict[str, Any] | None
    libraries: dict[str, str]
    files: dict[str, dict[str, Any]] = Field(description="size and sha256 of every one")


class ErrorAnswer(_Answer):
    error: str = Field(description="one sentence: what was wrong, what was expected")
    code: str
    details: dict[str, Any]
