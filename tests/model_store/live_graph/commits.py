"""Commits changes of the live graph of a model, as the service does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from model_store import ModelVersions
from model_store.errors import OperationError
from model_store.live_graph.current_data import open_live_graph
from model_store.live_graph.live_graph import ChangeRequest, LiveGraph
from model_store.live_graph.operations import Operation


def commit(versions: ModelVersions, *operations: Operation, redis: dict[str, Any] | None = None) -> int:
    """Returns the sequence of the change."""
    with versions.open() as snapshot, open_live_graph(snapshot, redis) as (live, log):
        (change,) = live.plan([ChangeRequest(operations)]).changes
        if isinstance(change, OperationError):
            raise change
        with log.writer(timeout=5) as writer:
            return writer.append([("", change.to_payload())], expected=live.position.sequence)[-1].sequence


@contextmanager
def opened(versions: ModelVersions, version: int | None = None) -> Iterator[LiveGraph]:
    """A version with all changes of its log."""
    with versions.open(version) as snapshot, open_live_graph(snapshot) as (live, _):
        yield live


def answers(versions: ModelVersions, version: int | None = None) -> dict[int | str, list[float]]:
    """The logits of every node, by its id."""
    with opened(versions, version) as live:
        rows = live.graph.adjacency.live_rows()
        return dict(zip(live.ids(rows.tolist()), live.graph.known(rows).logits.tolist(), strict=True))


def assert_same_answers(left: dict[int | str, list[float]], right: dict[int | str, list[float]], atol: float = 1e-5) -> None:
    assert left.keys() == right.keys()
    np.testing.assert_allclose([left[node] for node in right], list(right.values()), atol=atol)
