"""The full forward of several processes is that of one: the same sums, states and logits."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sgformer import FullForward, Graph, ModelConfig, SGFormer, SparseRows, summarize
from sgformer.full_graph import collectives
from sgformer.full_graph.collectives import gather_rows
from sgformer.full_graph.shard import Shard, row_ranges
from sgformer.sums import SUM_NAMES
from tests.ranks import run_ranks

CASES: list[dict[str, Any]] = [
    {"gnn_input": "shared", "layers": 2, "heads": 2},
    {"gnn_input": "own", "layers": 3, "normalization": "row"},
    {"gnn_input": "features", "layers": 1, "feature_transform": "standard"},
    {"gnn_input": "own", "layers": 0},
]


def make_graph(sparse: bool = False) -> Graph:
    """With a hub, repeats, nodes without edges, and edges between all ranges."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 7)).astype(np.float32)
    graph = Graph.build(rows, (rng.random((2, 1500)) ** 2 * 290).astype(int))
    if not sparse:
        return graph
    entries = SparseRows(np.arange(0, 2101, 7), np.tile(np.arange(7), 300), rows.reshape(-1), 7)
    return Graph(entries, graph.adjacency)


def forward(
    case: dict[str, Any], dtype: Any, chunk_rows: int, sparse: bool, device: str = "cpu"
) -> tuple[list[Any], list[Any], int, Any]:
    graph = make_graph(sparse)
    torch.manual_seed(0)
    model = SGFormer(ModelConfig(in_features=7, out_features=3, hidden=8, **case))
    model.fit_features(graph)
    shard, weights = Shard.of(graph, chunk_rows=chunk_rows), model.weights()
    summary = summarize(model.config, weights, graph, dtype=dtype, device=device, shard=shard, chunk_rows=chunk_rows)
    states = summary.states
    arrays = [gather_rows(np.asarray(array)) for array in (states.inputs, *states.layers, *states.aggregates)]
    logits = gather_rows(FullForward(model.config, graph, dtype, device, shard=shard).logits(weights))
    return arrays, [np.asarray(getattr(summary.sums, name)) for name in SUM_NAMES], summary.sums.count, logits


def all_cases() -> list[Any]:
    cases = [
        forward(case, dtype, 32, sparse) for case in CASES for dtype, sparse in ((np.float32, True), (np.float64, False))
    ]
    return [*cases, forward(CASES[0], np.float32, 200, False)]  # with four processes, two have no rows


@pytest.mark.parametrize("one_host", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_compute_what_one_computes(count: int, one_host: bool) -> None:
    expected = all_cases()
    for results in run_ranks(all_cases, count, one_host=one_host):
        for (states, sums, rows, logits), (states_of_one, sums_of_one, rows_of_one, logits_of_one) in zip(
            results, expected, strict=True
        ):
            assert rows == rows_of_one == 300
            for array, other in zip(sums, sums_of_one, strict=True):
                np.testing.assert_allclose(array, other, rtol=1e-12, atol=1e-12)
            for array, other in zip(states, states_of_one, strict=True):
                np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(logits, logits_of_one, rtol=1e-5, atol=1e-6)


def share_in_turns() -> tuple[list[Any], list[int]]:
    """Extended states of several layers, in processes of which each is the slower one in turn; and the range of each."""
    shard, results = Shard.of(make_graph(), chunk_rows=32), []
    dist.all_to_all_single = None  # nothing is sent
    for layer in range(6):
        time.sleep(0.1 * ((dist.get_rank() + layer) % 2))
        extended = shard.extended(np.full((shard.num_rows, 3), 10 * layer + dist.get_rank(), dtype=np.float32))
        time.sleep(0.1 * ((dist.get_rank() + layer // 2) % 2))
        results.append(extended.copy())
    return results, [shard.start, shard.stop]


def test_processes_of_one_host_see_the_states_of_the_same_layer() -> None:
    runs = run_ranks(share_in_turns, 3, one_host=True)
    for layer in range(6):
        expected = np.concatenate([[10 * layer + rank] * (stop - start) for rank, (_, (start, stop)) in enumerate(runs)])
        for results, _ in runs:
            np.testing.assert_array_equal(results[layer], np.repeat(expected[:, None], 3, axis=1))


def rows_and_products() -> tuple[int, int, Any, Any, Any]:
    shard = Shard.of(make_graph(), chunk_rows=10)
    shares = shard.product_shares
    assert shares is not None
    return shard.start, shard.stop, shares.kept, shares.given, shares.received


@pytest.mark.parametrize("count", [2, 4])
def test_processes_of_one_host_have_equally_many_rows_and_entries(count: int) -> None:
    indptr = make_graph().adjacency.indptr
    runs = run_ranks(rows_and_products, count, one_host=True)
    products = [[*range(*kept), *(row for rows in given for row in range(*rows))] for _, _, kept, given, _ in runs]
    assert sorted(row for rows in products for row in rows) == list(range(300))  # each is computed once
    for start, stop, kept, _, received in runs:
        assert abs(stop - start - 300 / count) <= 10
        assert sorted([*range(*kept), *(row for rows in received for row in range(*rows))]) == list(range(start, stop))
    entries = [sum(int(indptr[row + 1] - indptr[row]) for row in rows) for rows in products]
    assert max(entries) < 1.3 * indptr[-1] / count
    by_rows = [int(indptr[stop] - indptr[start]) for start, stop, *_ in runs]
    assert max(by_rows) > 1.3 * indptr[-1] / count  # the graph has hubs


def forward_in_rounds() -> tuple[Any, set[int], int]:
    """With small rounds; and the numbers of rows of states in one exchange, and the most rows that are gathered at once."""
    exchanged, gathered = set(), [0]
    all_to_all, all_gather = dist.all_to_all_single, dist.all_gather

    def counted(result: torch.Tensor, rows: torch.Tensor, *counts: Any) -> None:
        exchanged.update({len(rows), len(result)} if rows.dim() == 2 else set())
        all_to_all(result, rows, *counts)

    def counted_parts(parts: list[torch.Tensor], rows: torch.Tensor) -> None:
        gathered[0] = max(gathered[0], sum(map(len, parts)) if rows.dim() == 2 else 0)
        all_gather(parts, rows)

    collectives.EXCHANGED_ROWS, dist.all_to_all_single, dist.all_gather = 20, counted, counted_parts
    return forward(CASES[1], np.float64, 32, False), exchanged, gathered[0]


@pytest.mark.parametrize("count", [2, 3])
def test_a_halo_is_exchanged_in_rounds_of_bounded_size(count: int) -> None:
    (states, _, _, logits), *_ = forward(CASES[1], np.float64, 32, False), None
    for (states_in_rounds, _, _, logits_in_rounds), exchanged, gathered in run_ranks(forward_in_rounds, count):
        assert 1 <= max(exchanged) <= 20
        assert 1 <= gathered <= 20
        np.testing.assert_allclose(logits_in_rounds, logits, rtol=1e-12)
        for array, other in zip(states_in_rounds, states, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-12)


def test_ranges_are_whole_chunks_of_equal_work() -> None:
    adjacency = make_graph().adjacency
    total = adjacency.indptr + 8 * np.arange(301)
    bounds = row_ranges(total, 3, 10)
    assert bounds[0] == 0
    assert bounds[-1] == 300
    assert all(bound % 10 == 0 for bound in bounds)
    work = [total[stop] - total[start] for start, stop in pairwise(bounds)]
    assert max(work) < 1.25 * min(work)
    assert row_ranges(total, 4, 200) == [0, 200, 200, 200, 300]
