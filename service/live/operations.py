"""The body of POST /graph, and the operations of requests, which name nodes by id: in `operations` and in `assuming`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from model_store.live_graph.live_graph import ChangeRequest
from model_store.live_graph.operations import Features as LoggedFeatures
from model_store.live_graph.operations import Label as LoggedLabel
from model_store.live_graph.operations import Operation
from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.node_features import checked_features
from service.request_fields import Many, NamedFeatures, NodeId, SparseFeatures, Strict, refusal_for_body

Features = Annotated[
    Many[float] | SparseFeatures | NamedFeatures,
    Field(union_mode="left_to_right", description="raw: all in order, those that are not zero, or by name"),
]
Label = Annotated[
    Annotated[int, Field(ge=-(2**53), le=2**53)] | float | str | list[float | None] | list[str] | None,
    Field(
        union_mode="left_to_right",
        description="a class by number or name; a value; or for several labels a 0 or 1 for each, or the names that apply",
    ),
]


class AddNode(Strict):
    op: Literal["add_node"]
    id: NodeId = Field(description="of the kind that the ids of the graph have: a whole number or a string")
    features: Features = Field(default_factory=dict)
    neighbors: Many[NodeId] = Field(default_factory=list, description="nodes linked to it; repeats count once")
    label: Label = None


class SetFeatures(Strict):
    op: Literal["set_features"]
    id: NodeId
    features: Features


class SetLabel(Strict):
    op: Literal["set_label"]
    id: NodeId
    label: Label = Field(description="null: the node has no label any more")


class RemoveNode(Strict):
    """Its edges go with it. Its id may be used again."""

    op: Literal["remove_node"]
    id: NodeId


class AddEdge(Strict):
    op: Literal["add_edge"]
    source: NodeId
    target: NodeId


class RemoveEdge(Strict):
    op: Literal["remove_edge"]
    source: NodeId
    target: NodeId


GraphOperation = Annotated[AddNode | SetFeatures | SetLabel | RemoveNode | AddEdge | RemoveEdge, Field(discriminator="op")]
_OPERATION: TypeAdapter[Any] = TypeAdapter(GraphOperation)


class GraphChange(Strict):
    """Operations that are applied in order: all of them, or none."""

    operations: list[GraphOperation]
    upsert: bool = Field(
        default=False, description="adding what exists is an update, and removing what does not exist has no effect"
    )


class ParsedChange(NamedTuple):
    operations: list[Any]
    upsert: bool
    digest: str
    """The sha256 of the content, whatever the spelling of the JSON."""


def parse_change(body: bytes | bytearray, max_operations: int) -> ParsedChange:
    """Parses the body of POST /graph, one operation at a time: other threads run in between if the body is large.

    Raises Refusal: not_json, invalid or batch_too_large.
    """
    try:
        content = from_json(body)
    except ValueError as error:
        raise Refusal("not_json", f"the body is not JSON: {error}") from None
    operations = content.pop("operations", None) if isinstance(content, dict) else None
    if not isinstance(operations, list):
        raise Refusal("invalid", 'the body is not a change, expected {"operations": [...]}')
    if not operations:
        raise Refusal("invalid", "the request changes nothing, expected operations")
    check_count(operations, max_operations)
    try:
        upsert = bool(content) and GraphChange.model_validate_json(to_json({**content, "operations": []})).upsert
    except ValidationError as error:
        raise refusal_for_body(error) from None
    parsed, digest = [], hashlib.sha256(b"upsert" if upsert else b"strict")
    for index, operation in enumerate(operations):
        parsed.append(_parse_operation(operation, index))
        digest.update(orjson.dumps(parsed[-1].model_dump(), option=orjson.OPT_SORT_KEYS))
    return ParsedChange(parsed, upsert, digest.hexdigest())


def check_count(operations: Sequence[Any], limit: int) -> None:
    """Raises Refusal (batch_too_large)."""
    if len(operations) > limit:
        message = f"{len(operations):,} operations in one request, the limit is {limit:,} (SGF_MAX_OPERATIONS)"
        raise Refusal("batch_too_large", f"{message}; send several requests", limit=limit)


def _parse_operation(content: Any, index: int) -> Any:
    try:
        return _OPERATION.validate_python(content)
    except ValidationError as error:
        raise refusal_for_body(error, f"operations.{index}", operation=index) from None


def encode_change(model: ServedModel, change: ParsedChange) -> ChangeRequest:
    """The request to the live graph. Raises Refusal."""
    return ChangeRequest(encode_operations(model, change.operations), change.upsert, change.digest)


def encode_operations(model: ServedModel, operations: Sequence[Any]) -> list[Operation]:
    """Operations as the log holds them: features and labels are numbers. Raises Refusal, which names the operation."""
    return [_encode_operation(model, operation, index) for index, operation in enumerate(operations)]


def _encode_operation(model: ServedModel, item: Any, index: int) -> Operation:
    fields = {name: getattr(item, name) for name in type(item).model_fields}
    subject = f"operation {index}: node {fields.get('id')!r}"
    details = {"operation": index, "node": fields.get("id")}
    if "features" in fields:
        neighbors = set(item.neighbors) if isinstance(item, AddNode) else None
        fields["features"] = _encode_features(checked_features(model, item.features, subject, neighbors, **details))
    if "label" in fields:
        fields["label"] = _encode_label(model, item.label, subject, details)
    if "neighbors" in fields:
        fields["neighbors"] = tuple(item.neighbors)
    return Operation(**fields)


def _encode_features(features: Any) -> LoggedFeatures:
    if isinstance(features, SparseFeatures):
        return {"indices": features.indices, "values": features.values}
    return features if isinstance(features, list) else [float(value) for value in features]


def _encode_label(model: ServedModel, label: Any, subject: str, details: dict[str, Any]) -> LoggedLabel:
    """Replaces names of classes by their numbers. The live graph checks the numbers."""
    names = label if isinstance(label, list) else [label]
    if not any(isinstance(name, str) for name in names):
        return label  # type: ignore[no-any-return]  # the types of the fields are these
    for name in names:
        if name not in model.class_names or model.config.task == "regression":
            classes = ", ".join(map(repr, model.class_names[:10]))
            expected = "a number" if model.config.task == "regression" else f"one of {classes}"
            raise Refusal("invalid", f"{subject} has the label {name!r}, expected {expected}", **details)
    if model.config.task == "multilabel":
        return [float(name in names) for name in model.class_names]
    return model.class_names.index(label) if isinstance(label, str) else label  # a list is refused by the live graph
