"""A graph folder is complete or not there, and a changed byte is an error that names the file."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import DataError
from sgformer import Adjacency, GraphError
from tests.training.data.tables import write_tables
from training.data.graph_folder import edge_sorter
from training.data.graph_folder.edge_sorter import EdgeSorter
from training.data.graph_folder.folder import GraphFolder
from training.data.graph_folder.importing import import_graph
from training.data.graph_folder.progress import no_report

KILLED = """
import os, signal, sys
from pathlib import Path
from training.data.graph_folder.importing import import_graph

def report(stage, done, total):
    if stage == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

import_graph(Path(sys.argv[1]), Path(sys.argv[2]), report=report)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import_graph(write_tables(tmp_path / "pets", {}), tmp_path / "graph")
    return tmp_path / "graph"


FILES = ("features.npy", "indices.npy", "indptr.npy", "labels.npy", "node_ids.npy", "node_order.npy")


def test_the_folder_has_exactly_the_files_of_the_format(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted((*FILES, "graph.json"))
    content = json.loads((folder / "graph.json").read_text())
    assert [*content][:6] == ["format", "nodes", "edges", "width", "created", "source"]
    assert content["arrays"]["features.npy"]["shape"] == [12, 3]
    assert np.load(folder / "indices.npy").dtype == np.int32


@pytest.mark.parametrize("name", [*FILES, "graph.json"])
def test_a_changed_byte_is_an_error_that_names_the_file(folder: Path, name: str) -> None:
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if name == "graph.json" else -1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^graph: {name}"):
        GraphFolder.open(folder)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"source": "\ud800"}, "does not have its own hash"),  # JSON text may have a lone surrogate
        ({"arrays": {"node_ids.npy": {"shape": [12], "dtype": "|S0_4", "size": 1, "sha256": ""}}}, "shape or type"),
    ],
)
def test_a_changed_manifest_is_refused(folder: Path, changes: dict[str, Any], problem: str) -> None:
    path = folder / "graph.json"
    content = json.loads(path.read_text()) | changes
    if "arrays" in changes:  # forged: with a hash that fits
        del content["id"]
        content["id"] = hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"^graph: graph.json.*{problem}"):
        GraphFolder.open(folder)


def test_a_manifest_that_is_nested_too_deeply_is_refused(folder: Path) -> None:
    (folder / "graph.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"^graph: graph.json is not JSON: maximum recursion depth exceeded"):
        GraphFolder.open(folder)


def test_other_damage_is_named(folder: Path) -> None:
    def problem() -> str:
        with pytest.raises(DataError) as caught:
            GraphFolder.open(folder)
        return str(caught.value)

    (folder / "more.npy").write_bytes(b"")
    assert problem() == "graph: more.npy is not in graph.json"
    (folder / "more.npy").unlink()
    (folder / "labels.npy").write_bytes(b"x")
    assert problem() == "graph: labels.npy is 1 bytes long, graph.json says 224"
    (folder / "labels.npy").unlink()
    assert problem() == "graph: labels.npy is missing"
    content = json.loads((folder / "graph.json").read_text()) | {"format": 2}
    (folder / "graph.json").write_text(json.dumps(content))
    assert problem() == "graph: graph.json has format 2, this version reads 1: import the data again"


@pytest.mark.parametrize("stage", ["sorting edges"])
def test_a_killed_import_leaves_no_folder_and_the_next_one_cleans_up(tmp_path: Path, stage: str) -> None:
    source, out = write_tables(tmp_path / "pets", {}), tmp_path / "out" / "graph"
    command = [sys.executable, "-c", KILLED, str(source), str(out), stage]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    assert len(list(out.parent.glob(".graph.importing-*"))) == 2  # the folder and its lock
    import_graph(source, out)
    assert [path.name for path in out.parent.iterdir()] == ["graph"]
    assert GraphFolder.open(out).manifest.nodes == 12


def test_sorted_edges_are_those_of_the_adjacency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for trial in range(100):
        monkeypatch.setattr(edge_sorter, "CHUNK_EDGES", int(rng.integers(1, 30)))
        monkeypatch.setattr(edge_sorter, "MAX_RANGES", int(rng.integers(1, 9)))
        nodes, count = int(rng.integers(1, 40)), int(rng.integers(0, 150))
        edges = rng.integers(0, nodes, (2, count)) // (1 + trial % 3)  # loops, repeats, hubs
        folder = tmp_path / str(trial)
        folder.mkdir()
        sorter = EdgeSorter(folder, nodes, int(rng.integers(1, 60)))
        for part in np.array_split(edges, 3, axis=1):
            sorter.add(*part)
        given = sorter.write(folder / "indptr.npy", folder / "indices.npy", no_report)
        expected = Adjacency.from_edges(edges, nodes)
        assert given == expected.edge_list
        for name in ("indptr", "indices"):
            array, other = np.load(folder / f"{name}.npy"), getattr(expected, name)
            assert array.dtype == other.dtype
            assert array.tobytes() == other.tobytes()
        assert sorted(path.name for path in folder.iterdir()) == ["indices.npy", "indptr.npy"]
    sorter.add(np.array([0]), np.array([0]))
    with pytest.raises(GraphError, match=rf"^edge {count + 1} is 0 - {nodes}, expected node ids from 0 to {nodes - 1}$"):
        sorter.add(np.array([0]), np.array([nodes]))
