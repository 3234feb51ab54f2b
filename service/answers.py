"""What answers look like: for the OpenAPI document and for typed clients. The service itself encodes arrays (`encoding`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.questions import NodeId


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
    exactness: Literal["exact", "frozen"]


class PredictAnswer(_Answer):
    """Known nodes first, then new ones, in the order asked."""

    model: str
    version: int
    snapshot: str = Field(description="content hash of the snapshot that gave this answer")
    predictions: list[Prediction]


class ErrorAnswer(_Answer):
    error: str = Field(description="one sentence: what was wrong, what was expected")
    code: str
    details: dict[str, Any]
