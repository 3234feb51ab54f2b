"""Versions and the log: which activations keep the changes of the live graph, and which records must stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_store import ChangesMissing, NothingToRollBackTo, Store
from model_store.__main__ import main
from model_store.errors import RecordsPruned
from model_store.graph_log import LogAddress
from model_store.graph_log.file_log import FileLog
from model_store.live_graph.current_data import current_data, open_live_graph
from model_store.live_graph.live_graph import LiveGraph
from model_store.live_graph.operations import Operation
from tests.model_store.live_graph.commits import answers, assert_same_answers, commit, opened
from tests.model_store.samples import FEATURES, small_contents, small_labels

GRAPH, OTHER = "a" * 64, "b" * 64


def publish(store: Store, seed: int = 1, graph: str = GRAPH, activate: bool = True) -> int:
    contents = small_contents(seed, dataset={"sha256": graph}, **small_labels())
    return store.publish("demo", contents, onnx=False, activate=activate)


def compact(store: Store, activate: bool = True) -> int:
    """Publishes the live weights over the live graph, as `sgf-train refresh --data live`."""
    with opened(store.model("demo")) as live:
        data = current_data(live)
        contents = small_contents(
            1,
            data.graph,
            dataset={"sha256": OTHER[: -len(str(live.position.sequence))] + str(live.position.sequence)},
            node_ids=data.node_ids,
            labels=data.labels,
            split=data.split,
            live=data.position,
        )
    return store.publish("demo", contents, onnx=False, activate=activate)


def add(node: int, *neighbors: int) -> Operation:
    features = np.random.default_rng(node).normal(size=FEATURES).tolist()
    return Operation("add_node", node, features, neighbors, label=node % 3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_a_compacted_version_answers_as_the_changed_graph_and_keeps_the_ids(store: Store) -> None:
    publish(store)
    versions = store.model("demo")
    commit(versions, add(900, 0, 3), Operation("remove_node", 5), Operation("set_features", 7, [1.0] * FEATURES))
    commit(versions, add(5, 900), Operation("remove_edge", source=0, target=900), Operation("set_label", 59, label=2))
    before = answers(versions)
    assert compact(store) == 2
    assert_same_answers(answers(versions), before)
    with versions.open() as snapshot:
        with open_live_graph(snapshot) as (_, log):
            (record,) = log.read(after=1)
        assert snapshot.manifest.live == {"graph": GRAPH, "sequence": 2, "hash": record.hash}
        assert LiveGraph(snapshot).position == (2, record.hash), "known before a change is applied"
        labels = snapshot.labels
        assert labels is not None
        assert [labels[row] for row in snapshot.rows([900, 5, 59, 7])] == [0, 2, 2, 1]
    commit(versions, add(901, 900))
    assert 901 in answers(versions)


def test_a_rollback_replays_the_changes_after_the_earlier_version(store: Store) -> None:
    publish(store)
    versions = store.model("demo")
    commit(versions, add(900, 0))
    compact(store)
    commit(versions, add(901, 900, 3))
    expected = answers(versions)
    assert versions.rollback() == 1
    assert_same_answers(answers(versions), expected)


def test_a_version_over_another_graph_needs_permission_to_discard_changes(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(store)
    versions = store.model("demo")
    other = publish(store, seed=2, graph=OTHER)
    assert versions.live() == other, "without changes there is nothing to lose"
    versions.rollback()
    commit(versions, add(900, 0))
    expected = answers(versions)
    with pytest.raises(ChangesMissing, match=r"has 1 change\(s\) that a version over other data"):
        versions.activate(other)
    assert versions.live() == 1
    where = ["--store", str(store.root), "--model", "demo"]
    assert main(["activate", str(other), *where]) == 1
    assert "--discard-changes" in capsys.readouterr().err
    assert main(["activate", str(other), "--discard-changes", *where]) == 0
    assert 900 not in answers(versions)
    commit(versions, add(901, 0))
    with pytest.raises(ChangesMissing):
        versions.rollback()
    assert main(["rollback", "--discard-changes", *where]) == 0
    assert_same_answers(answers(versions), expected)


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment for each record, so that pruning removes all it may."""
    monkeypatch.setitem(FileLog.__init__.__kwdefaults__, "segment_bytes", 1)


@pytest.mark.usefixtures("short_segments")
def test_a_version_whose_changes_were_pruned_cannot_go_live(store: Store) -> None:
    publish(store)
    versions = store.model("demo")
    commit(versions, add(900, 0))
    late = compact(store, activate=False)
    for node in (901, 902, 903):
        commit(versions, add(node, 0))
    compact(store)
    FileLog(LogAddress(versions.folder, GRAPH).folder).prune(3)
    with pytest.raises(RecordsPruned, match="version 2 contains the changes up to 1, the log of its graph begins with"):
        versions.activate(late)
    with pytest.raises(NothingToRollBackTo, match="version 1 contains the changes up to 0"):
        versions.rollback()


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("seed", range(4))
def test_pruning_keeps_every_change_that_a_version_needs(store: Store, seed: int) -> None:
    """After any history, every version that is left leads to the same graph."""
    rng = np.random.default_rng(seed)
    publish(store)
    versions, nodes = store.model("demo"), list(range(900, 960))
    for _ in range(14):
        step = rng.choice(["commit", "commit", "compact", "rollback", "prune"])
        if step == "commit":
            commit(versions, add(nodes.pop(), int(rng.integers(60))))
        elif step == "compact":
            compact(store, activate=bool(rng.integers(2)))
        elif step == "rollback" and len(versions.history().entries) > 1:
            try:
                versions.rollback()
            except NothingToRollBackTo:
                continue
        elif step == "prune":
            versions.prune(keep=int(rng.integers(1, 4)))
    expected = answers(versions)
    for version in versions.versions():
        assert_same_answers(answers(versions, version), expected)
    compact(store)
    compact(store)
    versions.prune(keep=1)
    kept = min((versions.manifest(version).live or {"sequence": 0})["sequence"] for version in versions.versions())
    log = FileLog(LogAddress(versions.folder, GRAPH).folder)
    assert log.start().position.sequence <= kept
    if kept > 1:
        assert log.start().position.sequence >= kept - 1, "what every version contains is removed, but for one segment"


def test_the_log_of_a_graph_goes_with_its_last_version(store: Store) -> None:
    publish(store)
    versions = store.model("demo")
    commit(versions, add(900, 0))
    folder = LogAddress(versions.folder, GRAPH).folder
    for seed in (2, 3):
        other = publish(store, seed=seed, graph=OTHER, activate=False)
        versions.activate(other, discard_changes=True)
        assert folder.is_dir()
        versions.prune(keep=1)
        assert folder.is_dir() == (seed == 2), "a roll-back may need version 1 until version 3 is live"
