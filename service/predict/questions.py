"""A question: the body of /predict and /embed, validated directly from its bytes."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from service.errors import Refusal
from service.live.operations import GraphOperation
from service.request_fields import LIGHT_BYTES, Many, NamedFeatures, NodeId, SparseFeatures, Strict, refusal_for_body

NAME_WEIGHT = 40
"""Parsing a name, or an object, costs as much as this many numbers."""


class NewNode(Strict):
    """A node that the graph does not have."""

    id: NodeId = Field(description="your name for the node, which the answer repeats", examples=["a"])
    features: Many[float] | SparseFeatures | NamedFeatures = Field(
        default_factory=dict,
        union_mode="left_to_right",
        description="raw: all in order, those that are not zero, or by name; the service applies the transform of training. "
        "May be left out only if the model can fill in all of them",
    )
    neighbors: Many[NodeId] = Field(default_factory=list, description="its known neighbours; repeats count once")


class Question(Strict):
    """Known nodes, new nodes, or both."""

    nodes: Many[NodeId] = Field(default_factory=list, description="nodes of the graph", examples=[[0, 5]])
    new_nodes: Many[NewNode] = Field(default_factory=list, description="nodes that the graph does not have")
    edges: Many[tuple[NodeId, NodeId]] = Field(default_factory=list, description="pairs of ids of joint new nodes")
    joint: bool = Field(default=False, description="answer all new nodes together; else each as if it were the only one")
    mode: Literal["exact", "frozen"] = Field(
        default="exact", description="exact: as a full forward with the node added; frozen: neighbours are not recomputed"
    )
    embeddings: bool = Field(default=False, description="return embeddings too")
    probabilities: bool | Literal["by_class"] = Field(
        default=True, description="return all probabilities, as a list or as an object by the names of the classes"
    )
    top_k: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(default=None, description="return the k likeliest classes")
    on_error: Literal["refuse", "per_item"] = Field(
        default="refuse", description="per_item: answer the other nodes, and give an error for each node without an answer"
    )

    min_sequence: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="answer from a graph that contains this change, or give 503"
    )
    assuming: Many[GraphOperation] = Field(
        default_factory=list, description="answer as if the graph had been changed like this; nothing is kept"
    )

    def digest(self) -> str:
        """A hash of the content, independent of spaces and of the order of fields and neighbours."""
        content = self.model_dump(exclude={"min_sequence"})
        for node in content["new_nodes"]:
            node["neighbors"] = sorted(set(node["neighbors"]), key=lambda node_id: (isinstance(node_id, str), node_id))
        return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=20).hexdigest()


_ADAPTER, _NODE, _ID = TypeAdapter(Question), TypeAdapter(NewNode), TypeAdapter[int | str](NodeId)


def parse_question(body: bytes | bytearray, max_weight: int) -> Question:
    """Raises Refusal: body_too_large if parsing would take too long, not_json, or invalid."""
    check_weight(body, max_weight)
    try:
        question: Question = _ADAPTER.validator.validate_json(body)  # the method of the adapter takes half as long again
    except ValidationError as error:
        refusal = refusal_for_body(error)
        question = _parse_per_item(body, refusal)
    if not question.nodes and not question.new_nodes:
        raise Refusal("invalid", "the request asks nothing, expected nodes or new_nodes")
    if question.new_nodes:
        _check_new_nodes(question)
    elif question.edges or question.joint:
        raise Refusal("invalid", "edges and joint are about new nodes, and there are none")
    return question


def _parse_per_item(body: bytes | bytearray, refusal: Refusal) -> Question:
    """Parses again, node by node. An invalid new node gets its refusal as `features`; `predict.new_nodes` raises it.

    Raises `refusal` if the request is not `per_item`, or the problem is not one of new nodes with valid ids.
    """
    content: Any = None if refusal.code == "not_json" else from_json(body)
    is_per_item = isinstance(content, dict) and content.get("on_error") == "per_item"
    nodes = content.pop("new_nodes", None) if is_per_item else None
    if not isinstance(nodes, list):
        raise refusal
    try:
        question = _ADAPTER.validate_json(to_json(content, inf_nan_mode="constants"))
        return question.model_copy(update={"new_nodes": [_parse_node(node) for node in nodes]})
    except ValidationError:
        raise refusal from None


def _parse_node(content: Any) -> NewNode:
    """Raises ValidationError if the node has no valid id."""
    try:
        return _NODE.validate_json(to_json(content, inf_nan_mode="constants"))
    except ValidationError as error:
        node_id = _ID.validate_python(content.get("id") if isinstance(content, dict) else None, strict=True)
        return NewNode.model_construct(id=node_id, features=refusal_for_body(error), neighbors=[])


def check_weight(body: bytes | bytearray, limit: int) -> None:
    """Refuses a body that would block the event loop; its compressed form may be small.

    Counts separators, also those inside strings: that takes a fraction of a millisecond, and ids have few separators.
    """
    if len(body) <= LIGHT_BYTES:
        return
    weight = body.count(b",") + NAME_WEIGHT * (body.count(b":") + body.count(b"{"))
    if weight > limit:
        message = f"the body holds about {weight:,} values (a name counts as {NAME_WEIGHT}), the limit is {limit:,}"
        raise Refusal("body_too_large", f"{message}; send fewer nodes per request (SGF_MAX_BODY_WEIGHT)", limit=limit)


def _check_new_nodes(question: Question) -> None:
    ids: set[int | str] = set()
    for node in question.new_nodes:
        if node.id in ids:
            raise Refusal("invalid", f"two new nodes have the id {node.id!r}, expected different ones", node=node.id)
        ids.add(node.id)
    if question.joint and question.on_error == "per_item":
        message = "joint new nodes are answered together or not at all, expected on_error: refuse (the default)"
        raise Refusal("invalid", message)
    if question.edges and not question.joint:
        raise Refusal("invalid", "edges connect new nodes, which see each other only with joint: true")
    for edge in question.edges:
        for end in edge:
            if end not in ids:
                raise Refusal("invalid", f"edge end {end!r} is not the id of a new node", node=end)
