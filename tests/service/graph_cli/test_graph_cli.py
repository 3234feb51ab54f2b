"""sgf-graph against a running service: each operation exactly once, errors by line, the state, and the exported graph."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store.publish.graph_file import read_graph_file
from service.graph_cli.__main__ import main
from sgformer_client import Client
from tests.service.live.rebuilt import HEADERS, KEY, Rebuilt, add_node, change, edge
from tests.service.serving import CONTENTS

ROOT = Path(__file__).parents[3]


def apply(client: httpx.Client, file: Path, *more: str) -> int:
    return main(["apply", str(file), "--url", str(client.base_url), "--key", KEY, "--quiet", *more])


def operations(count: int = 40) -> list[dict[str, Any]]:
    """Each is refused if it is applied twice, or out of order."""
    found: list[dict[str, Any]] = []
    for number in range(count):
        found += [add_node(100 + number, number, number % 20), edge("add_edge", 100 + number, 30)]
        if number % 3 == 0:
            found += [edge("remove_edge", 100 + number, 30), {"op": "remove_node", "id": 100 + number}]
    return found


def write(file: Path, lines: list[Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def assert_equal_to(client: httpx.Client, rebuilt: Rebuilt) -> None:
    expected = rebuilt.probabilities()
    answer = client.post("/predict", json={"nodes": list(expected)}, headers=HEADERS).json()
    found = [prediction["probabilities"] for prediction in answer["predictions"]]
    np.testing.assert_allclose(found, list(expected.values()), atol=1e-5)


def test_a_file_is_applied_once_however_often_it_is_applied(
    live: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*operations(), {"operations": [add_node(500, 1), add_node(501, 2, 500)]}]
    file = write(tmp_path / "changes.jsonl", lines)
    assert apply(live, file, "--batch", "7", "--json") == 0
    applied = json.loads(capsys.readouterr().out)
    assert (applied["operations"], applied["skipped"], applied["earlier_lines"]) == (len(lines) + 1, 0, 0)
    assert apply(live, file) == 0
    assert f"0 operations applied, 0 skipped ({len(lines)} lines were applied before)" in capsys.readouterr().out
    with file.open("a") as stream:
        stream.write("\n" + json.dumps(add_node(502, 3, 501)))  # without a newline at the end
    assert apply(live, file) == 0
    with file.open("a") as stream:
        stream.write("\n" + json.dumps(add_node(503, 3, 502)) + "\n")
    assert apply(live, file) == 0
    assert "1 operations applied" in capsys.readouterr().out
    rebuilt = Rebuilt(CONTENTS).apply(*operations(), add_node(500, 1), add_node(501, 2, 500))
    assert_equal_to(live, rebuilt.apply(add_node(502, 3, 501), add_node(503, 3, 502)))


def test_a_run_whose_answers_are_lost_continues_without_doubling(
    live: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run dies right after the service has committed its batch; the next one has another batch size."""
    file = write(tmp_path / "changes.jsonl", operations())
    change_graph = Client.change_graph

    def die_after(client: Client, *arguments: Any, **options: Any) -> Any:
        change_graph(client, *arguments, **options)
        raise KeyboardInterrupt

    runs = 0
    while (
        result := apply_once(live, file, str(5 + runs % 4), monkeypatch, die_after if runs % 2 == 0 else change_graph)
    ) != 0:
        assert result == 130
        runs += 1
        assert runs < 50
    assert_equal_to(live, Rebuilt(CONTENTS).apply(*operations()))


def apply_once(live: httpx.Client, file: Path, batch: str, monkeypatch: pytest.MonkeyPatch, change_graph: Any) -> int:
    sent = 0

    def send(client: Client, *arguments: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent > 3:  # dies before it sends
            raise KeyboardInterrupt
        return change_graph(client, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "change_graph", send)
        return apply(live, file, "--batch", batch)


def test_a_killed_run_continues_without_doubling(live: httpx.Client, tmp_path: Path) -> None:
    file = write(tmp_path / "changes.jsonl", operations(150))
    where = ["--url", str(live.base_url), "--key", KEY, "--batch", "2"]
    command = [sys.executable, "-m", "service.graph_cli", "apply", str(file), *where]
    progress, kills = Path(f"{file}.progress"), 0
    while True:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        before = progress.read_bytes() if progress.exists() else b""
        while process.poll() is None and (not progress.exists() or progress.read_bytes() == before):
            time.sleep(0.002)
        time.sleep(0.03)  # some batches later
        if kills < 3 and process.poll() is None:
            process.kill()
            process.communicate()
            kills += 1
            continue
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
        break
    assert kills == 3
    assert_equal_to(live, Rebuilt(CONTENTS).apply(*operations(150)))


def test_errors_name_the_line_and_the_run_continues_after_a_fix(
    live: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = [add_node(100, 1), add_node(101, 2)], add_node(100, 3)
    file = write(tmp_path / "changes.jsonl", [*good, bad, add_node(102, 4)])
    assert apply(live, file, "--batch", "2") == 1
    error = capsys.readouterr().err
    assert "changes.jsonl, line 3: operation 0: node 100 exists already" in error
    assert "the lines before 3 are applied" in error
    write(file, [*good, {"op": "set_features", "id": 100, "features": bad["features"]}, add_node(102, 4)])
    assert apply(live, file, "--batch", "2") == 0
    write(file, [add_node(100, 9), *good])
    assert apply(live, file) == 1
    assert "changes.jsonl was changed: its lines up to 4" in capsys.readouterr().err
    for line, message in (
        ("{", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON: maximum recursion depth exceeded"),
        ("[1]", "line 1: expected an operation"),
        ('{"a": 1}', "expected an op"),
    ):
        broken = tmp_path / "broken.jsonl"
        broken.write_text(line)
        assert apply(live, broken) == 1
        assert message in capsys.readouterr().err
    Path(f"{file}.progress").write_text(json.dumps({"graph": "c" * 64, "first": 1, "last": 0, "digest": ""}))
    assert apply(live, file) == 1
    assert "is about graph cccccccccccccccc" in capsys.readouterr().err
    assert main(["apply", str(tmp_path / "none.jsonl"), "--url", str(live.base_url)]) == 1
    assert "none.jsonl" in capsys.readouterr().err
    assert main(["status", "--url", "http://127.0.0.1:9"]) == 1
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err


def test_status_and_export_read_the_graph_from_the_store(
    live: httpx.Client, own_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert change(live, *operations()).status_code == 200
    where = ["--store", str(own_store)]
    assert main(["status", "--json", *where]) == 0
    stored = json.loads(capsys.readouterr().out)
    served = live.get("/graph").json()
    same = ("model", "version", "snapshot", "graph", "sequence", "hash", "snapshot_sequence", "nodes", "edges")
    assert {name: stored[name] for name in same} == {name: served[name] for name in same}
    assert main(["status", "--url", str(live.base_url)]) == 0
    assert "1, of which 1 since the version was made" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "graph.npz"), *where]) == 0
    assert f"{stored['nodes']} nodes, {stored['edges']} edges, at change 1" in capsys.readouterr().out
    file, rebuilt = read_graph_file(tmp_path / "graph.npz"), Rebuilt(CONTENTS).apply(*operations())
    assert file.node_ids is not None
    ids = file.node_ids.names(range(file.graph.num_nodes))
    features: Any = file.graph.features
    np.testing.assert_array_equal(features, np.array([rebuilt.features[node] for node in ids], dtype=np.float32))
    assert sorted(ids) == sorted(rebuilt.features)
    assert {frozenset((ids[left], ids[right])) for left, right in file.graph.adjacency.edge_index().T} == rebuilt.edges
    assert file.class_names == ("x", "y", "z")
    assert main(["export", str(tmp_path / "graph.csv"), *where]) == 1
    assert "must end in .npz" in capsys.readouterr().err


def test_the_example_applies_a_stream_once(live: httpx.Client, tmp_path: Path) -> None:
    events = [{"offset": offset, "operations": [add_node(700 + offset, offset, 3)]} for offset in range(5)]
    stream = write(tmp_path / "stream.jsonl", [*events, *events[2:]])  # delivered again
    example = [sys.executable, str(ROOT / "examples/replay_stream.py"), str(stream), str(live.base_url), KEY]
    for _ in range(2):
        done = subprocess.run(example, capture_output=True, text=True, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
        assert len(done.stdout.splitlines()) == 8
    assert live.get("/graph").json()["sequence"] == 5
