"""Training and refreshing on the live graph: its changes, labels and split, and what must not be lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store import ModelVersions, Store
from model_store.live_graph.current_data import open_live_graph
from model_store.live_graph.operations import Operation
from sgformer import SparseRows
from tests.model_store.live_graph.commits import answers, assert_same_answers, commit, opened
from tests.ranks import run_ranks
from tests.service.redis_server import RedisServer
from tests.training.samples import labelled
from training.__main__ import main
from training.cli import terminal, train_command
from training.data.splits import parts_by_rule
from training.fit.loop import train
from training.fit.processes import rank

NODES, WIDTH = 200, 6


def write_graph(path: Path, **more: Any) -> None:
    data = labelled(nodes=NODES)
    arrays = {"x": data.graph.features, "edge_index": data.graph.adjacency.edge_index(), "y": data.labels} | more
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def sgf_train(folder: Path, *words: str) -> int:
    command = [words[0]] if words[0] in ("check", "refresh", "tune") else []
    where = ["--store", str(folder / "models"), "--model", "demo", "--quiet"]
    return main([*command, *where, *words[len(command) :]])


def first_version(folder: Path, **more: Any) -> ModelVersions:
    write_graph(folder / "graph.npz", **more)
    settings = ["--epochs", "2", "--hidden", "8", "--no-checkpoint"]
    assert sgf_train(folder, "--data", str(folder / "graph.npz"), "--activate", *settings) == 0
    return Store(folder / "models").model("demo")


def add(node: int | str, *neighbors: int | str, label: int | None = None) -> Operation:
    features = np.random.default_rng(sum(map(ord, str(node)))).normal(size=WIDTH).tolist()
    return Operation("add_node", node, features, neighbors, label)


def sparse_features() -> dict[str, Any]:
    features = np.where(np.abs(labelled(nodes=NODES).graph.features) > 1, 1.5, 0).astype(np.float32)
    rows, columns = np.nonzero(features)
    indptr = np.append(0, np.cumsum(np.bincount(rows, minlength=NODES)))
    values = features[rows, columns]
    return {"x": None, "x_data": values, "x_indices": columns, "x_indptr": indptr, "x_shape": np.array([NODES, WIDTH])}


@pytest.mark.parametrize("kind", ["rows", "names", "numbers", "sparse"])
def test_a_refresh_of_live_data_answers_as_the_changed_graph(tmp_path: Path, kind: str) -> None:
    ids: list[Any] = {"names": [f"n{row}" for row in range(NODES)], "numbers": list(range(1000, 1000 + NODES))}.get(
        kind, list(range(NODES))
    )
    more = sparse_features() if kind == "sparse" else {} if kind == "rows" else {"node_ids": np.array(ids)}
    versions = first_version(tmp_path, **more)
    new = "new" if kind == "names" else 5000
    sparse = Operation("set_features", ids[9], {"indices": [4, 1], "values": [2.5, -1.0]})
    commit(versions, add(new, ids[0], ids[3]), Operation("remove_node", ids[5]), sparse)
    commit(versions, add(ids[5], new), Operation("set_features", ids[8], [0.5, 0, 0, -2, 0, 1]))
    before = answers(versions)
    assert sgf_train(tmp_path, "refresh", "--data", "live", "--activate", "if_better") == 0
    assert versions.live() == 2
    assert_same_answers(answers(versions), before)
    with versions.open() as snapshot:
        assert isinstance(snapshot.raw_features(), SparseRows) == (kind == "sparse")
        assert snapshot.manifest.live is not None
        assert snapshot.manifest.live["sequence"] == 2
        assert (snapshot.node_ids is None) is False
        assert snapshot.manifest.training["refreshed_from"]["version"] == 1
    commit(versions, add("newer" if kind == "names" else 5001, new))
    assert len(answers(versions)) == NODES + 2


def test_consecutive_new_rows_need_no_ids(tmp_path: Path) -> None:
    versions = first_version(tmp_path)
    commit(versions, add(NODES, 0), add(NODES + 1, NODES))
    assert sgf_train(tmp_path, "refresh", "--data", "live", "--activate") == 0
    with versions.open() as snapshot:
        assert snapshot.node_ids is None
        assert snapshot.states.num_nodes == NODES + 2


def test_changes_that_are_committed_during_a_training_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = first_version(tmp_path)
    commit(versions, add(900, 0, label=1))
    capsys.readouterr()

    def train_while_the_graph_changes(*arguments: Any, **options: Any) -> Any:
        commit(versions, add(901, 900, label=2), Operation("remove_node", 3))
        return train(*arguments, **options)

    monkeypatch.setattr(train_command, "train", train_while_the_graph_changes)
    assert sgf_train(tmp_path, "--data", "live", "--activate", "--no-checkpoint", "--keep", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["version"], result["nodes"], result["epochs"]) == (2, NODES + 1, 2), "the settings of version 1"
    manifest = versions.manifest(2)
    assert manifest.config.hidden == 8
    assert manifest.live is not None
    assert (manifest.live["graph"], manifest.live["sequence"]) == (versions.manifest(1).dataset["sha256"], 1)
    with opened(versions) as live:
        assert live.position.sequence == 2
        assert live.num_nodes == NODES + 1
        assert (live.row(3), live.label(live.rows([901])[0]), live.label(live.rows([900])[0])) == (None, 2, 1)
    assert versions.rollback() == 1
    assert {900, 901} <= answers(versions).keys()


def test_the_live_graph_is_checked_and_tuned_with_its_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_graph(tmp_path / "graph.npz")
    plain, versions = tmp_path / "plain.toml", Store(tmp_path / "models")
    plain.write_text('dataset = "x"\nnote = "x"\n[model]\ngnn_batch_norm = false\nfeature_transform = "row"\nhidden = 8\n')
    settings = ["--recipe", str(plain), "--epochs", "2", "--no-checkpoint"]
    assert sgf_train(tmp_path, "--data", str(tmp_path / "graph.npz"), "--activate", *settings) == 0
    commit(versions.model("demo"), add(900, 0, label=1))
    assert sgf_train(tmp_path, "--data", "live", "--no-checkpoint") == 0
    first, second = (versions.model("demo").manifest(number).config for number in (1, 2))
    assert first == second, "settings without a flag are kept, too"
    capsys.readouterr()
    assert sgf_train(tmp_path, "check", "live", "--json") == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert (facts["nodes"], facts["labels"]["labelled"]) == (NODES + 1, NODES + 1)
    assert facts["scaling"] == "row", "a training on the live graph keeps the settings of the live version"
    recipe = tmp_path / "mine.toml"
    words = ["--data", "live", "--trials", "1", "--epochs", "1", "--out", str(recipe), "--json"]
    assert sgf_train(tmp_path, "tune", *words) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 1
    assert sgf_train(tmp_path, "--data", "live", "--recipe", str(recipe), "--no-publish", "--no-checkpoint", "--json") == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == NODES + 1
    assert sgf_train(tmp_path, "check", "live", "--impute", "mean") == 2


def test_nodes_keep_their_part_and_new_labels_follow_the_rule(tmp_path: Path) -> None:
    versions = first_version(tmp_path, y=np.where(np.arange(NODES) < 190, np.arange(NODES) % 3, -1))
    commit(versions, Operation("remove_node", 0), Operation("set_label", 195, label=2), Operation("set_label", 7, label=0))
    commit(versions, *(add(node, 1, label=node % 3) for node in range(1000, 1040)), add(1040, 1))
    with versions.open(1) as snapshot:
        before = np.array(snapshot.split)
    assert sgf_train(tmp_path, "--data", "live", "--no-checkpoint") == 0
    with versions.open(2) as snapshot:
        ids = np.array(snapshot.ids(range(snapshot.states.num_nodes)))
        parts = dict(zip(ids.tolist(), np.array(snapshot.split).tolist(), strict=True))
        assert (
            snapshot.manifest.training["split"] == versions.manifest(1).training["split"] == "0.5/0.25/0.25, seed 0, by row"
        )
    assert 0 not in parts
    assert [parts[row] for row in range(1, 190)] == before[1:190].tolist()
    new = np.array([195, *range(1000, 1040)])
    assert [parts[node] for node in new.tolist()] == parts_by_rule(new, 0, (0.5, 0.25, 0.25)).tolist()
    assert {parts[node] for node in new.tolist()} == {0, 1, 2}
    assert (parts[1040], parts[196]) == (-1, -1)


def test_a_stored_split_stays_and_unused_labels_stay_unused(tmp_path: Path) -> None:
    split = np.where(np.arange(NODES) < 150, np.arange(NODES) % 3, -1)
    versions = first_version(tmp_path, split=split)
    commit(versions, add(NODES, 1, label=1))
    assert sgf_train(tmp_path, "refresh", "--data", "live") == 0
    with versions.open(2) as snapshot:
        assert snapshot.split is not None
        assert snapshot.split[:NODES].tolist() == split.tolist()
        assert snapshot.split[NODES] == parts_by_rule(np.array([NODES]), 0, (0.5, 0.25, 0.25))[0]


def test_the_gate_is_fair_on_the_live_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    versions = first_version(tmp_path, split=np.arange(NODES) % 3)
    commit(versions, add(NODES, 1, label=1))
    capsys.readouterr()
    words = ["--data", "live", "--activate", "if_better", "--no-checkpoint", "--epochs", "30", "--json"]
    assert sgf_train(tmp_path, *words) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert (verdict["fair"], verdict["live_version"]) == (True, 1)


def test_other_data_does_not_replace_a_changed_graph_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    versions = first_version(tmp_path)
    commit(versions, add(900, 0))
    other = ["--data", str(tmp_path / "graph.npz"), "--epochs", "1", "--no-checkpoint"]
    assert sgf_train(tmp_path, *other, "--activate") == 0, "the same data is the same graph"
    assert 900 in answers(versions)
    write_graph(tmp_path / "graph.npz", y=np.arange(NODES) % 2)
    assert sgf_train(tmp_path, *other, "--activate", "if_better") == 1
    assert "the live graph" in (error := capsys.readouterr().err)
    assert "has 1 change(s)" in error
    assert versions.versions() == [1, 2], "refused before the training"
    assert sgf_train(tmp_path, "refresh", *other[:2], "--activate") == 1
    assert versions.versions() == [1, 2], "refused before it is published"
    assert sgf_train(tmp_path, *other) == 0
    assert sgf_train(tmp_path, *other, "--activate", "--discard-changes") == 0
    assert 900 not in answers(versions)


def test_a_log_in_redis_is_read_checked_and_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = RedisServer(tmp_path)
    redis = {"url": server.url}
    try:
        monkeypatch.setenv("SGF_GRAPH_LOG", "redis")
        assert sgf_train(tmp_path, "refresh", "--data", "live") == 1
        assert "SGF_GRAPH_LOG is 'redis', expected file, or redis with SGF_REDIS_URL" in capsys.readouterr().err
        monkeypatch.setenv("SGF_REDIS_URL", server.url)
        versions = first_version(tmp_path)
        commit(versions, add(900, 0, label=1), redis=redis)
        commit(versions, add(901, 900), redis=redis)
        assert sgf_train(tmp_path, "refresh", "--data", "live", "--activate") == 0
        with versions.open() as snapshot:
            assert snapshot.ids([NODES, NODES + 1]) == [900, 901]
        commit(versions, add(902, 901), redis=redis)
        (log,) = server.client.keys("sgf:graph:{demo:*}:log")
        assert server.client.xlen(log) == 3
        write_graph(tmp_path / "graph.npz", y=np.arange(NODES) % 2)
        other = ["--data", str(tmp_path / "graph.npz"), "--epochs", "1", "--no-checkpoint"]
        assert sgf_train(tmp_path, *other, "--activate") == 1
        assert "has 3 change(s)" in capsys.readouterr().err
        for _ in range(2):
            assert sgf_train(tmp_path, "refresh", "--data", "live", "--activate", "--keep", "1") == 0
        assert server.client.xlen(log) == 1, "versions 2, 3 and 4 contain the first two changes"
        for _ in range(3):
            assert sgf_train(tmp_path, *other, "--activate", "--discard-changes", "--keep", "1") == 0
        assert server.client.keys("sgf:graph:{demo:*}:log") == []
        assert not (versions.folder / "graph_log").exists()
    finally:
        server.kill()


def test_errors_say_what_live_data_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    versions = first_version(tmp_path)
    assert sgf_train(tmp_path, "--data", "live", "--split", "0.6/0.2/0.2") == 2
    assert "it takes no --split" in capsys.readouterr().err
    assert sgf_train(tmp_path, "refresh", "--data", "live", "--impute", "mean") == 2
    assert "not for --data live" in capsys.readouterr().err
    refreshed = ["refresh", "--data", str(tmp_path / "graph.npz"), "--no-raw-data", "--activate"]
    assert sgf_train(tmp_path, *refreshed) == 0
    assert sgf_train(tmp_path, "refresh", "--data", "live") == 1
    assert "version 2 has no raw features (it was published with --no-raw-data" in capsys.readouterr().err
    assert sgf_train(tmp_path, "refresh", "--data", str(tmp_path / "graph.npz"), "--activate") == 0
    assert sgf_train(tmp_path, "--data", "live") == 1
    assert "the live graph has no labels" in capsys.readouterr().err
    assert versions.live() == 3


def run_while_the_graph_changes(folder: Path, words: list[str], new: int) -> int:
    """Before the second process reads the log, the graph changes and version 1 goes live again."""
    versions = Store(folder / "models").model("demo")

    def opened_later(snapshot: Any, *more: Any) -> Any:
        if rank() == 1:
            commit(versions, add(new, 1))
        return open_live_graph(snapshot, *more)

    terminal.open_live_graph = opened_later
    if rank() == 1:
        ModelVersions.live = lambda _self: 1  # type: ignore[method-assign]
    return sgf_train(folder, *words)


def test_all_processes_read_the_graph_of_the_first_while_it_changes(tmp_path: Path) -> None:
    versions = first_version(tmp_path)
    more = ["--epochs", "1", "--hidden", "8", "--no-checkpoint", "--lr", "0.1"]
    assert sgf_train(tmp_path, "--data", str(tmp_path / "graph.npz"), "--activate", *more) == 0
    commit(versions, add(5000, 0, 3))
    for number, words in enumerate((["refresh", "--data", "live"], ["--data", "live", "--batch-nodes", "100", *more]), 3):
        assert run_ranks(run_while_the_graph_changes, 2, tmp_path, words, 6000 + number) == [0, 0]
        with versions.open(number) as snapshot:
            assert snapshot.manifest.live is not None
            assert snapshot.manifest.live["sequence"] == number - 2
            assert snapshot.manifest.training.get("refreshed_from", {"version": 2})["version"] == 2
