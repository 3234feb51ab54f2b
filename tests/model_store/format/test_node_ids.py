from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store import DataError, NodeIds
from sgformer import UnknownNodeError

TEXTS = st.text(min_size=1, max_size=8).filter(lambda text: "\0" not in text and text.isprintable())


@given(st.lists(TEXTS, min_size=1, unique=True) | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, unique=True))
def test_every_id_finds_its_row(ids: list[Any]) -> None:
    names = NodeIds.build(np.array(ids))
    assert names.rows(ids[::-1]).tolist() == list(range(len(ids)))[::-1]
    assert names.names(range(len(ids))) == ids


@pytest.mark.parametrize("unknown", ["aa", "", "b", "a\0", "\ud800", 1, True, 2**70, "a" * 300])
def test_an_unknown_text_is_named(unknown: Any) -> None:
    with pytest.raises(UnknownNodeError, match="is not in the graph"):
        NodeIds.build(["a", "c"]).rows(["a", unknown])


@pytest.mark.parametrize("unknown", [2, "1", True, 2**70, 1.0])
def test_an_unknown_number_is_named(unknown: Any) -> None:
    with pytest.raises(UnknownNodeError, match="is not in the graph"):
        NodeIds.build([1, 3]).rows([unknown])


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (["a", "b", "a"], "rows 0 and 2 have the same id 'a'"),
        ([3, 1, 3], "rows 0 and 2 have the same id 3"),
        (["a", ""], "row 1 has b'', expected 1 to 256 bytes"),
        (["a" * 257], "row 0 has"),
        ([[1, 2]], "have 2 dimension"),
        ([1.5], "hold float64"),
        ([1, "a"], "are of several types"),
        (["a", float("nan")], "are of several types"),
        (["a", "b\0"], "row 1 has"),
        (["\ud800"], "row 0 has"),
        (np.array([2**63], dtype=np.uint64), "does not fit 64-bit integers"),
    ],
)
def test_invalid_ids(ids: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        NodeIds.build(ids)
