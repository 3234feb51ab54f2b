"""The JSON responses of the service, as pydantic models for the OpenAPI document and for clients.

The service does not encode /predict with these models: `service.predict.encoding` writes the same JSON from arrays.
"""

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
    """One node. The task of the model and the options of the request decide which fields are present."""

    node: NodeId
    label: int | None = None
    class_name: str | None = Field(default=None, alias="class")
    labels: list[int] | None = Field(default=None, description="multi-label: the labels that apply")
    classes: list[str] | None = Field(default=None, description="multi-label: their names")
    value: float | list[float] | None = Field(default=None, description="regression")
    probabilities: list[float] | None = None
    top_k: list[LikelyClass] | None = None
    embedding: list[float] | None = None
    exactness: Literal["exact", "frozen", "rounded"] = Field(
        description="rounded: exact except for the rounding of half-precision states (rounding_error)"
    )


class Origin(_Answer):
    """The version of a model that a response comes from."""

    model: str
    version: int
    snapshot: str = Field(description="content hash of the snapshot")


class PredictAnswer(Origin):
    """Predictions of the known nodes, then of the new nodes, both in the order of the request."""

    rounding_error: float | None = Field(
        default=None, description="largest error of rounded predictions, measured when the snapshot was published"
    )
    predictions: list[Prediction]


class Live(_Answer):
    status: Literal["live"] = "live"


class Ready(Origin):
    status: Literal["ready"] = "ready"


class ServedVersion(Origin):
    """The version that this worker serves."""

    engine: str = Field(examples=["numpy"])
    loading_seconds: dict[str, float] = Field(description="duration of each loading step")


class Failure(_Answer):
    """Why a worker could not load a version. Without a version number, the store had no live version."""

    version: int | None
    error: str
    at: str


class RollBack(_Answer):
    left: int | None = Field(alias="from")
    to: int
    why: str | None = Field(description="why the service rolled back automatically; null if a user rolled back")
    at: str


class StoredVersion(_Answer):
    """A version in the store. A damaged version has only `version`, `live` and `damaged`, the reason."""

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
    failure: Failure | None = Field(description="of the last attempt to load a version; null after a success")
    probation: int | None = Field(description="the version that is rolled back automatically if it fails too often")
    problem: str | None = Field(default=None, description="damage in the store's record of live versions")
    rolled_back: RollBack | None = Field(description="the roll-back that made the live version live")
    versions: list[StoredVersion]


class ManifestAnswer(Origin):
    """`manifest.json` of a version (docs/snapshot_format.md)."""

    format: int
    created: str
    config: dict[str, Any]
    nodes: int
    edges: int
    node_ids: str | None = Field(description="type of the node ids; null if the ids are 0 to N - 1")
    classes: list[str] | None
    dataset: dict[str, Any]
    training: dict[str, Any]
    scores: dict[str, Any]
    states: dict[str, Any]
    probe_tolerance: float
    onnx: dict[str, Any] | None
    libraries: dict[str, str]
    files: dict[str, dict[str, Any]] = Field(description="size and sha256 of each file")


class ErrorAnswer(_Answer):
    error: str = Field(description="one sentence: what was wrong, what was expected")
    code: str
    details: dict[str, Any]
