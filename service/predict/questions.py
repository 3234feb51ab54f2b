"""What is asked: the body of /predict and /embed, validated straight from its bytes."""

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
"""A row number from 0, or one of the snapshot's own ids where it has them."""
T = TypeVar("T")


class _FailFast(FailFast):
    """With the hash that `typing` wants of the parts of a union."""

    def __hash__(self) -> int:
        return hash(type(self))


Many = Annotated[list[T], _FailFast()]
"""A list of which the first wrong item is told: telling all of a large body of nonsense would take seconds and gigabytes."""
_MAX_DETAILS = 10
_KINDS = {"constrained-int", "constrained-str", "list[float]", "SparseFeatures"}
"""pydantic's names for the two kinds that an id and features may be of."""
_SHAPES = {"int_type", "string_type", "list_type", "model_type"}
"""Complaints that a value is not of a kind at all."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SparseFeatures(_Strict):
    """The features that are not zero."""

    indices: Many[Annotated[int, Field(ge=0, lt=2**31)]]
    values: Many[FiniteFloat]


class NewNode(_Strict):
    """A node that the graph does not have."""

    id: NodeId = Field(description="your name for it; the answer has it", examples=["a"])
    features: Many[FiniteFloat] | SparseFeatures = Field(description="raw: what training did to features is done here too")
    neighbors: Many[NodeId] = Field(default_factory=list, description="known nodes that it is linked to; repeats count once")


class Question(_Strict):
    """Known nodes, new nodes, or both."""

    nodes: Many[NodeId] = Field(default_factory=list, description="nodes of the graph", examples=[[0, 5]])
    new_nodes: Many[NewNode] = Field(default_factory=list, description="nodes that it has never seen")
    edges: Many[tuple[NodeId, NodeId]] = Field(
        default_factory=list, description="links between joint new nodes, by their ids"
    )
    joint: bool = Field(default=False, description="all new nodes at once; else each is answered as if it came alone")
    mode: Literal["exact", "frozen"] = Field(
        default="exact", description="exact: as a full forward with the node added; frozen: neighbours are not recomputed"
    )
    embeddings: bool = Field(default=False, description="return embeddings too")
    probabilities: bool = Field(default=True, description="return all probabilities")
    top_k: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        default=None, description="return the k likeliest classes by name"
    )

    def digest(self) -> str:
        """The same for the same question, however its JSON was written."""
        content = self.model_dump()
        for node in content["new_nodes"]:
            node["neighbors"] = sorted(set(node["neighbors"]), key=lambda one: (isinstance(one, str), one))
        return hashlib.blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=20).hexdigest()


_ADAPTER = TypeAdapter(Question)
LIGHT_BYTES = 16 * 1024
"""A smaller body is read in a few milliseconds, whatever it holds."""
NAME_WEIGHT = 40
"""Reading a name, or an object, costs as much as so many numbers."""


def _check_weight(body: bytes | bytearray, limit: int) -> None:
    """Raises Refusal for a body that takes the event loop too long to read. Such a body may be small when it is compressed.

    Counts separators, in strings too: that takes a fraction of a millisecond, and an id holds few of them.
    """
    if len(body) <= LIGHT_BYTES:
        return
    weight = body.count(b",") + NAME_WEIGHT * (body.count(b":") + body.count(b"{"))
    if weight > limit:
        told = f"the body holds about {weight:,} values (a name counts as {NAME_WEIGHT}), the limit is {limit:,}"
        raise Refusal("body_too_large", f"{told}; send fewer nodes per request (SGF_MAX_BODY_WEIGHT)", limit=limit)


def parsed(body: bytes | bytearray, max_weight: int) -> Question:
    """Raises Refusal: 413 for what takes too long to read, 400 for what is not JSON, 422 for what is not a question."""
    _check_weight(body, max_weight)
    try:
        question = _ADAPTER.validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None
    if not question.nodes and not question.new_nodes:
        raise Refusal("invalid", "the request asks nothing, expected nodes or new_nodes")
    if question.new_nodes:
        _check_new_nodes(question)
    elif question.edges or question.joint:
        raise Refusal("invalid", "edges and joint are about new nodes, and there are none")
    return question


def _check_new_nodes(question: Question) -> None:
    known: set[int | str] = set()
    for node in question.new_nodes:
        if node.id in known:
            raise Refusal("invalid", f"two new nodes have the id {node.id!r}, expected different ones", node=node.id)
        known.add(node.id)
    if question.edges and not question.joint:
        raise Refusal("invalid", "edges link new nodes, which see each other only with joint: true")
    for edge in question.edges:
        for end in edge:
            if end not in known:
                raise Refusal("invalid", f"edge end {end!r} is not the id of a new node", node=end)


def _refusal(error: ValidationError) -> Refusal:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        return Refusal("not_json", f"the body is not JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}")
    listed = [{"where": where[:200], "problem": told} for where, told in islice(_told(problems).items(), _MAX_DETAILS)]
    first = listed[0]
    return Refusal("invalid", f"{first['where'] or 'the body'}: {first['problem']}", problems=listed)


def _told(problems: Sequence[Any]) -> dict[str, str]:
    """By place, what was expected there.

    Where a value may be one of two kinds, pydantic complains for each, under a name of its own. Is it of one kind's shape,
    then only that kind's complaint helps its author: it lies deeper, or is not about the shape.
    """
    places: dict[str, list[tuple[bool, str]]] = {}
    for one in problems:
        where = ".".join(str(part) for part in one["loc"] if part not in _KINDS)
        places.setdefault(where, []).append((one["type"] in _SHAPES, one["msg"]))
    found = {}
    for where, complaints in places.items():
        about_value = [told for is_shape, told in complaints if not is_shape]
        if about_value or not any(other.startswith(f"{where}.") for other in places):
            first, *others = dict.fromkeys(about_value or [told for _, told in complaints])
            found[where] = " or ".join([first, *(told.removeprefix("Input should be ") for told in others)])
    return found
