"""Logits are kept while the graph stays as it is, and never longer."""

from __future__ import annotations

import numpy as np
import pytest

from service.engines import logits_memo
from service.engines.logits_memo import MIN_CALLS, LogitsMemo
from sgformer import ChangingGraph
from tests.sgformer.live.test_changing_graph import opened


class Computations:
    """Counts the rows that are computed."""

    def __init__(self, graph: ChangingGraph) -> None:
        self._graph, self.rows = graph, list[int]()

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.rows += rows.tolist()
        return np.asarray(self._graph.known(rows).logits)


@pytest.fixture
def graph() -> ChangingGraph:
    return opened(np.float32)[0]


def read_often(memo: LogitsMemo, compute: Computations, rows: np.ndarray) -> np.ndarray:
    for _ in range(MIN_CALLS + 1):
        logits = memo.read(rows, compute)
    compute.rows.clear()
    return logits


def test_logits_are_computed_once_until_the_graph_changes(graph: ChangingGraph) -> None:
    memo, compute, rows = LogitsMemo(graph), Computations(graph), np.array([3, 5, 3])
    logits = read_often(memo, compute, rows)
    assert np.array_equal(memo.read(rows, compute), logits)
    assert np.array_equal(memo.read(np.array([5, 7]), compute)[0], logits[1])
    assert compute.rows == [7]
    assert memo.missing(np.array([3, 8, 7])).tolist() == [8]
    draft = graph.draft()
    draft.remove_node(29)
    graph.apply(draft.changes())
    assert memo.missing(rows).tolist() == [3, 5, 3]
    assert np.array_equal(memo.read(rows, compute), graph.known(rows).logits)


def test_a_full_memo_computes_the_rest(graph: ChangingGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logits_memo, "MAX_ROWS", 2)
    memo, compute = LogitsMemo(graph), Computations(graph)
    read_often(memo, compute, np.array([3, 5]))
    for _ in range(2):
        assert np.array_equal(memo.read(np.array([3, 8]), compute), graph.known(np.array([3, 8])).logits)
    assert compute.rows.count(8) == 2
    memo.read(np.array([3, 5]), compute)
    assert compute.rows[-2:] == [3, 8]
