"""The tables of the measurement are such as users have."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.groups import first_prediction
from training.data.user_data import read_user_data


def test_the_tables_are_read_without_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_prediction, "NODES", 300)
    monkeypatch.setattr(first_prediction, "EDGES", 900)
    first_prediction.write_tables(tmp_path / "listeners")
    data = read_user_data(tmp_path / "listeners")
    assert data.graph.num_nodes == 300
    assert data.graph.num_edges > 700
    assert data.class_names is not None
    assert len(data.class_names) == 10
    assert data.schema is not None
    kinds = {column.name: column.kind for column in data.schema.columns}
    assert tuple(kinds) == first_prediction.COLUMNS
    assert (kinds["age"], kinds["plan"], kinds["partner"]) == ("number", "category", "boolean")
