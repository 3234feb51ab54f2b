"""The next item is computed while the caller uses one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sgformer.full_graph.prefetch import prefetched


def test_the_next_item_is_computed_ahead_and_no_further() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(6):
            taken.append(number)
            yield number

    results = prefetched(lambda number: 10 // (4 - number), items())
    assert taken == []
    assert [next(results), next(results)] == [2, 3]
    assert taken == [0, 1, 2]
    assert [next(results), next(results)] == [5, 10]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert threading.active_count() == 1 + sum(thread.daemon for thread in threading.enumerate())
    assert list(prefetched(str, [])) == []
