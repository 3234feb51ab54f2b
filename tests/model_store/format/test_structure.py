"""String ids of a large graph are checked in short chunks. `test_forgery` tests invalid graphs."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store import NodeIds, SnapshotError
from model_store.format.structure import check_node_order


def sorted_ids(ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    return ids, np.argsort(ids, kind="stable").astype(np.int64)


def peak_of_many_text_ids() -> int:
    """The peak of traced memory while 200,000 ids are checked."""
    ids = np.char.add("customer-", np.random.default_rng(0).permutation(200_000).astype("U6")).astype("S64")
    arrays = sorted_ids(ids)
    tracemalloc.start()
    check_node_order(*arrays)
    return tracemalloc.get_traced_memory()[1]


def test_checking_many_text_ids_needs_little_memory() -> None:
    """In a process of its own: tracemalloc counts all threads, and other tests leave some."""
    program = "from tests.model_store.format.test_structure import peak_of_many_text_ids; print(peak_of_many_text_ids())"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert 0 < int(done.stdout) < 2 * 2**20, f"{done.stdout.strip()} bytes for {200_000 * 64:,} bytes of ids"


@pytest.mark.parametrize("row", [0, 4_999, 9_999])
def test_an_id_that_is_not_utf8_is_found_in_any_chunk(row: int) -> None:
    ids = np.char.add("id-", np.arange(10_000).astype("U5")).astype("S40")
    ids[row] = b"id-\xff"
    with pytest.raises(SnapshotError, match="has an id that is not UTF-8"):
        check_node_order(*sorted_ids(ids))


def test_half_a_character_is_not_completed_by_the_next_id() -> None:
    whole = "é".encode()
    ids = np.array([b"a" + whole[:1], whole[1:] + b"a"], dtype="S2")
    with pytest.raises(SnapshotError, match="has an id that is not UTF-8"):
        check_node_order(*sorted_ids(ids))


def test_ids_of_every_width_pass() -> None:
    for text in ("a", "é", "\U0001f600", "ü" * 128):
        check_node_order(*NodeIds.build([f"{text}", "b", "日本"]).arrays)
