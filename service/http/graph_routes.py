"""The graph as it is now: its state, its nodes, and POST /graph, which the gateway answers without ASGI."""

from __future__ import annotations

import asyncio
from typing import Annotated

import orjson
from fastapi import APIRouter, Header

from model_store.graph_log.record import MAX_KEY_BYTES
from service.errors import Refusal
from service.http.data_routes import DEFAULT_NEIGHBORS, Limit, NodeText, describe_node
from service.http.reply import Reply
from service.http.request import Request
from service.live.committer import Committer
from service.live.operations import GraphChange, encode_change, parse_change
from service.live.replica import Replica
from service.request_fields import LIGHT_BYTES
from service.rollout.rollout import Rollout
from service.settings import Settings
from service.store_reader import StoreReader
from sgformer_client.answers import GraphAnswer, GraphChanged, NodeAnswer

IdempotencyKey = Annotated[
    str | None,
    Header(description="a repeated request with the same key and body changes nothing and returns its sequence"),
]


class GraphChanges:
    """Answers POST /graph. `Security` has checked the write key already."""

    def __init__(self, settings: Settings, rollout: Rollout, committer: Committer) -> None:
        self._settings, self._rollout, self._committer = settings, rollout, committer

    async def reply(self, request: Request) -> Reply:
        """Raises Refusal and StoreError."""
        key = _key(request.named.get(b"idempotency-key"))
        body, limit = request.content(self._settings.max_body_bytes), self._settings.max_operations
        request.slot.release()  # requests that are committed together must not wait for each other's slots
        is_light = len(body) <= LIGHT_BYTES
        parsed = parse_change(body, limit) if is_light else await asyncio.to_thread(parse_change, body, limit)
        model = self._rollout.current().acquire()
        try:
            change = encode_change(model, parsed) if is_light else await asyncio.to_thread(encode_change, model, parsed)
        finally:
            model.release()
        committed = await self._committer.commit(change, key, len(body))
        return Reply(200, orjson.dumps(committed.answer()))


def _key(header: bytes | None) -> str:
    """Raises Refusal."""
    if header is None:
        return ""
    if not (0 < len(header) <= MAX_KEY_BYTES and header.isascii() and (key := header.decode()).isprintable()):
        expected = f"expected 1 to {MAX_KEY_BYTES} printable ASCII characters"
        raise Refusal("invalid", f"the header Idempotency-Key has {len(header)} bytes, {expected}")
    return key


def graph_routes(rollout: Rollout, replica: Replica, reader: StoreReader) -> APIRouter:
    router = APIRouter(tags=["graph"])
    about = "Change the graph: all operations or none, in order. Needs a write key."

    @router.post("/graph", summary=about)
    def change(_change: GraphChange, idempotency_key: IdempotencyKey = None) -> GraphChanged:
        raise NotImplementedError  # for the OpenAPI document only: the gateway calls `GraphChanges`

    @router.get("/graph", summary="The state of the graph: its last change, its size, its log.")
    async def graph() -> GraphAnswer:
        model, log = rollout.current(), replica.log
        state = model.origin | model.live.describe() | {"lag_seconds": round(replica.lag_seconds, 3)}
        if log is not None:
            kind = "file" if model.log.redis is None else "redis"
            size = await reader.run(lambda: log.size_bytes)
            state["log"] = {"kind": kind, "bytes": size, "durability": log.durability}
        return GraphAnswer.model_validate(state)

    about = "A node of the graph as it is now: neighbours, features, label, and when a change added it."

    @router.get("/graph/nodes/{node_id:path}", summary=about, response_model_exclude_unset=True)
    async def node(node_id: NodeText, limit: Limit = DEFAULT_NEIGHBORS) -> NodeAnswer:
        model = rollout.current()
        return describe_node(model, model.node_id(node_id), limit)

    return router
