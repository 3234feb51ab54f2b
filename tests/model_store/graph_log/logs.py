"""What the tests of the graph log share."""

from __future__ import annotations

from collections.abc import Sequence

from model_store.graph_log import GraphLog, Record


def append(log: GraphLog, *payloads: bytes, keys: Sequence[str] = ()) -> list[Record]:
    """Appends one group, as a process that has seen the whole log."""
    with log.writer(timeout=30) as writer:
        return writer.append(list(zip(keys or [""] * len(payloads), payloads, strict=True)), log.position().sequence)


def read_all(log: GraphLog, after: int = 0) -> list[Record]:
    records: list[Record] = []
    while found := log.read(records[-1].sequence if records else after, limit=7):
        records += found
    return records
