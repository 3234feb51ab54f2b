"""The bodies of /explain and /similar, and the query of /map."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar
from urllib.parse import parse_qs

from pydantic import Field, TypeAdapter, ValidationError

from service.errors import Refusal
from service.predict.questions import NewNode, Question, check_weight
from service.request_fields import Many, NodeId, Strict, refusal_for_body
from service.settings import Settings

MAX_TOP = 1000
MAX_SIMILAR = 100
DEFAULT_SHOWN, MAX_SHOWN = 100_000, 200_000
_LIMIT = re.compile(r"[1-9][0-9]{0,6}")
Body = TypeVar("Body")


class ExplainQuestion(Strict):
    """One node, known or new."""

    node: NodeId | None = Field(default=None, description="a node of the graph", examples=[0])
    new_node: NewNode | None = Field(default=None, description="a node that the graph does not have")
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = Field(
        default=10, description="how many neighbours and features to report; the effects of all are computed"
    )

    @property
    def node_id(self) -> int | str:
        node_id = self.node if self.new_node is None else self.new_node.id
        assert node_id is not None  # noqa: S101  # `parse_explain` has checked it
        return node_id


class SimilarQuestion(Strict):
    """Known nodes, new nodes, or both."""

    nodes: Many[NodeId] = Field(default_factory=list, description="nodes of the graph", examples=[[0, 5]])
    new_nodes: Many[NewNode] = Field(default_factory=list, description="nodes that the graph does not have")
    k: Annotated[int, Field(ge=1, le=MAX_SIMILAR)] = Field(default=10, description="how many similar nodes to list")


_EXPLAIN, _SIMILAR = TypeAdapter(ExplainQuestion), TypeAdapter(SimilarQuestion)


def parse_explain(body: bytes | bytearray, settings: Settings) -> ExplainQuestion:
    """Raises Refusal."""
    question = _parsed(_EXPLAIN, body, settings)
    if (question.node is None) == (question.new_node is None):
        found = "neither node nor new_node" if question.node is None else "both node and new_node"
        raise Refusal("invalid", f"the request has {found}, expected one of them: a request explains one node")
    if question.new_node is not None:
        _check_neighbors(len(question.new_node.neighbors), settings)
    return question


def parse_similar(body: bytes | bytearray, settings: Settings) -> SimilarQuestion:
    """Raises Refusal."""
    question = _parsed(_SIMILAR, body, settings)
    nodes = len(question.nodes) + len(question.new_nodes)
    if not nodes:
        raise Refusal("invalid", "the request asks nothing, expected nodes or new_nodes")
    if nodes > (limit := settings.max_nodes):
        raise Refusal("batch_too_large", f"{nodes:,} nodes in one request, the limit is {limit:,}", limit=limit)
    _check_neighbors(sum(len(node.neighbors) for node in question.new_nodes), settings)
    return question


def parse_map_limit(query: bytes) -> int:
    """`limit` of the query of /map. Raises Refusal."""
    text = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("limit", [str(DEFAULT_SHOWN)])[-1]
    if not _LIMIT.fullmatch(text) or int(text) > MAX_SHOWN:
        raise Refusal("invalid", f"limit is {text!r}, expected a whole number from 1 to {MAX_SHOWN}")
    return int(text)


def as_question(nodes: list[NewNode]) -> Question:
    """New nodes, each in its own scenario, as /predict takes them."""
    return Question(new_nodes=nodes)


def _parsed(adapter: TypeAdapter[Body], body: bytes | bytearray, settings: Settings) -> Body:
    check_weight(body, settings.max_body_weight)
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        raise refusal_for_body(error) from None


def _check_neighbors(count: int, settings: Settings) -> None:
    if count > (limit := settings.max_neighbors):
        raise Refusal("batch_too_large", f"{count:,} neighbours in one request, the limit is {limit:,}", limit=limit)
