"""The body of /predict and /embed, validated straight from its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, TypeAdapter, ValidationError

from service.errors import Refusal

MAX_ID_LENGTH = 256
NodeId = Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=MAX_ID_LENGTH)]
"""A row number from 0, or one of the snapshot's own ids if it has them."""
T = TypeVar("T")


class _FailFast(FailFast):
    """With a hash, which `typing` needs for the parts of a union."""

    def __hash__(self) -> int:
        return hash(type(self))


Many = Annotated[list[T], _FailFast()]
"""A list of which only the first wrong item is reported: reporting all of a large body would take seconds and gigabytes."""
LIGHT_BYTES = 16 * 1024
"""Parsing a smaller body takes a few milliseconds, whatever its content."""
NAME_WEIGHT = 40
"""Parsing a name, or an object, costs as much as this many numbers."""
_MAX_DETAILS = 10
_KINDS = {"constrained-int", "constrained-str", "list[float]", "SparseFeatures"}
"""pydantic's names for the two kinds of an id and of features."""
_KIND_PROBLEMS = {"int_type", "string_type", "list_type", "model_type"}
"""pydantic's names for the problem that a value is not of a kind."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SparseFeatures(_Strict):
    """The features that are not zero."""

    indices: Many[Annotated[int, Field(ge=0, lt=2**31)]]
    values: Many[FiniteFloat]


class NewNode(_Strict):
    """A node that the graph does not have."""

    id: NodeId = Field(description="your name for the node, which the answer repeats", examples=["a"])
    features: Many[FiniteFloat] | SparseFeatures = Field(description="raw: the service applies the transform of training")
    neighbors: Many[NodeId] = Field(default_factory=list, description="known nodes linked to it; repeats count once")


class Question(_Strict):
    """Known nodes, new nodes, or both."""

    nodes: Many[NodeId] = Field(default_factory=list, description="nodes of the graph", examples=[[0, 5]])
    new_nodes: Many[NewNode] = Field(default_factory=list, description="nodes that the graph does not have")
    edges: Many[tuple[NodeId, NodeId]] = Field(default_factory=list, description="links between joint new nodes, by id")
    joint: bool = Field(default=False, description="answer all new nodes together; else each as if it were the only one")
    mode: Literal["exact", "frozen"] = Field(
        default="exact", description="exact: as a full forward with the node added; frozen: neighbours are not recomputed"
    )
    embeddings: bool = Field(default=False, description="return embeddings too")
    probabilities: bool = Field(default=True, description="return all probabilities")
    top_k: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(default=None, description="return the k likeliest classes")

    def digest(self) -> str:
        """A hash of the content, whatever the spelling of the JSON."""
        content = self.model_dump()
        for node in content["new_nodes"]:
            node["neighbors"] = sorted(set(node["neighbors"]), key=lambda node_id: (isinstance(node_id, str), node_id))
        return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=20).hexdigest()


_ADAPTER = TypeAdapter(Question)


def parse_question(body: bytes | bytearray, max_weight: int) -> Question:
    """Raises Refusal: body_too_large if parsing would take too long, not_json, or invalid."""
    _check_weight(body, max_weight)
    try:
        question = _ADAPTER.validate_json(body)
    except ValidationError as error:
        raise _refusal_for(error) from None
    if not question.nodes and not question.new_nodes:
        raise Refusal("invalid", "the request asks nothing, expected nodes or new_nodes")
    if question.new_nodes:
        _check_new_nodes(question)
    elif question.edges or question.joint:
        raise Refusal("invalid", "edges and joint are about new nodes, and there are none")
    return question


def _check_weight(body: bytes | bytearray, limit: int) -> None:
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
    if question.edges and not question.joint:
        raise Refusal("invalid", "edges link new nodes, which see each other only with joint: true")
    for edge in question.edges:
        for end in edge:
            if end not in ids:
                raise Refusal("invalid", f"edge end {end!r} is not the id of a new node", node=end)


def _refusal_for(error: ValidationError) -> Refusal:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        return Refusal("not_json", f"the body is not JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}")
    messages = islice(_messages(problems).items(), _MAX_DETAILS)
    details = [{"where": where[:200], "problem": message} for where, message in messages]
    return Refusal("invalid", f"{details[0]['where'] or 'the body'}: {details[0]['problem']}", problems=details)


def _messages(problems: Sequence[Any]) -> dict[str, str]:
    """What was expected, by place in the body.

    For a value that may be of two kinds, pydantic reports a problem with each kind, at a place with the name of the kind.
    If the value is of one kind, only the problem with that kind is useful: it is deeper, or not about the kind.
    """
    places: dict[str, list[tuple[bool, str]]] = {}
    for problem in problems:
        where = ".".join(str(part) for part in problem["loc"] if part not in _KINDS)
        places.setdefault(where, []).append((problem["type"] in _KIND_PROBLEMS, problem["msg"]))
    messages = {}
    for where, reports in places.items():
        about_value = [message for about_kind, message in reports if not about_kind]
        if about_value or not any(other.startswith(f"{where}.") for other in places):
            first, *others = dict.fromkeys(about_value or [message for _, message in reports])
            messages[where] = " or ".join([first, *(message.removeprefix("Input should be ") for message in others)])
    return messages
