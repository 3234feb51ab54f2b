"""A group of requests that are committed together: validated in order, each on the graph after the earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from model_store.errors import OperationError
from model_store.graph_log import GraphLog, Record
from model_store.live_graph.live_graph import ChangeRequest
from model_store.live_graph.operations import Change
from model_store.live_graph.pending import PendingChanges
from service.engines.served_model import ServedModel
from service.errors import Refusal


class Committed(NamedTuple):
    origin: dict[str, Any]
    """The version, and the sequence of the change."""
    nodes: int
    edges: int
    applied: int
    skipped: int
    durability: str

    def answer(self) -> dict[str, Any]:
        return self.origin | {name: value for name, value in self._asdict().items() if name != "origin"}


@dataclass(eq=False)
class Waiting:
    request: ChangeRequest
    key: str
    """The idempotency key, or ""."""
    size: int
    """The bytes of the body."""
    result: asyncio.Future[Committed]
    is_taken: bool = False
    """True from the moment when the change may be in the log."""


class Group(NamedTuple):
    """Requests that are committed together, after their validation."""

    refused: dict[Waiting, Exception]
    logged: dict[Waiting, Record]
    """Requests whose idempotency key is in the log, with the same content."""
    entries: dict[Waiting, tuple[str, bytes]]
    """Valid requests: the idempotency key and the payload of the record to append."""
    repeats: list[tuple[Waiting, Waiting]]
    """Pairs: a request, and the first request of the group with the same idempotency key."""
    pending: PendingChanges | None = None
    """The effect of `entries`, computed; None if there are none."""

    def settle(self, records: Sequence[Record]) -> dict[Waiting, Record]:
        """Returns the record of every request that is in the log, and completes `refused`. `records`: those of `entries`."""
        logged = self.logged | dict(zip(self.entries, records, strict=True))
        for waiting, first in self.repeats:
            if waiting.request.digest != first.request.digest:
                self.refused[waiting] = _key_reused(waiting.key)
            elif first in logged:
                logged[waiting] = logged[first]
            else:
                self.refused[waiting] = self.refused[first]
        return logged


def validate_group(waiting: Sequence[Waiting], model: ServedModel, log: GraphLog) -> Group:
    """Validates requests in order, and computes the effect of the valid ones."""
    group = Group({}, {}, {}, [])
    fresh = _separate(waiting, log, group)
    plan = model.live.plan([each.request for each in fresh])
    for each, change in zip(fresh, plan.changes, strict=True):
        if isinstance(change, OperationError):
            group.refused[each] = change
        else:
            group.entries[each] = each.key, change.to_payload()
    if not group.entries:
        return group
    plan.pending.changes  # noqa: B018  # computes it here: an error must come before the records are logged
    return group._replace(pending=plan.pending)


def _separate(waiting: Sequence[Waiting], log: GraphLog, group: Group) -> list[Waiting]:
    """Returns the requests with a new idempotency key, or without a key. Adds all other requests to the group."""
    first_with_key: dict[str, Waiting] = {}
    fresh = []
    for each in waiting:
        record = log.recall(each.key) if each.key else None
        if record is None:
            first = first_with_key.setdefault(each.key, each) if each.key else each
            if first is each:
                fresh.append(each)
            else:
                group.repeats.append((each, first))
        elif Change.from_payload(record.payload).request == each.request.digest:
            group.logged[each] = record
        else:
            group.refused[each] = _key_reused(each.key)
    return fresh


def _key_reused(key: str) -> Refusal:
    message = f"the idempotency key {key!r} belongs to another change: use a new key for a new change"
    return Refusal("conflict", message, key=key)
