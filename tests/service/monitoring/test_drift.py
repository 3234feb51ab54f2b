"""Drift: each change of the requests or of the graph raises its own gauge and no other, and quiet days raise none."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from model_store.demo import install_demo
from model_store.live_graph.operations import Operation
from service.engines.served_model import ServedModel, load
from service.live.replica import replay
from service.monitoring import request_counts
from service.monitoring.drift import VersionDrift
from service.monitoring.graph_counts import change_of_sums, count_graph
from service.monitoring.reference import MAX_FEATURES, Reference, _watched, dense_columns
from service.monitoring.request_counts import RequestCounts
from service.settings import Settings
from service.telemetry.metrics import DRIFT_KINDS
from sgformer import AttentionSums, NewNodes, SparseRows
from sgformer.features import MixedRows, take_rows
from sgformer_client import AsyncClient, Client
from tests.model_store.live_graph.commits import commit
from tests.model_store.samples import small_contents, small_graph
from tests.service.live.rebuilt import HEADERS, KEY
from tests.service.monitoring import planted
from tests.service.monitoring.planted import Day
from tests.service.serving import in_processes, in_thread, until

CHANGES: dict[str, Callable[[Day], Day]] = {
    "features": Day.shift_feature,
    "degrees": Day.grow_degrees,
    "predictions": Day.change_mix,
    "confidence": Day.lose_confidence,
}
GRAPH = planted.contents().graph


def new_nodes(day: Day, model: ServedModel) -> NewNodes:
    lists: Any = day.neighbors
    return NewNodes.build(day.features, lists, num_nodes=model.num_rows, num_features=model.config.in_features)


def measured(model: ServedModel, day: Day) -> dict[str, Any]:
    """As the service measures the requests of a day."""
    reference = model.derive(lambda served: Reference(served.snapshot))
    drift = VersionDrift(model, reference, RequestCounts(None, model.id, reference.size))
    new = new_nodes(day, model)
    drift.requests.add(reference.count(new.features, new.counts, model.extended(new, "exact", None).logits))
    return drift.measure()[0]


def alarms(kinds: dict[str, Any]) -> list[str]:
    return [kind for kind, part in kinds.items() if part.verdict == "drift"]


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("count", [150, 1000])
def test_each_change_of_requests_raises_its_own_kind_and_no_other(planted_model: ServedModel, kind: str, count: int) -> None:
    kinds = measured(planted_model, CHANGES[kind](Day(GRAPH, seed=7, count=count)))
    assert list(kinds) == list(DRIFT_KINDS)
    assert alarms(kinds) == [kind]
    assert kinds[kind].samples == count


def test_the_worst_features_and_classes_are_named(planted_model: ServedModel) -> None:
    kinds = measured(planted_model, Day(GRAPH, seed=7, count=500).shift_feature())
    assert kinds["features"].worst[0].name == 1
    assert kinds["features"].worst[0].value == kinds["features"].value
    assert kinds["features"].ks > 0.4
    mixed = measured(planted_model, Day(GRAPH, seed=7, count=500).change_mix())["predictions"]
    assert {part.name for part in mixed.worst} == {"0", "1"}
    assert mixed.ks is None


@pytest.mark.parametrize("count", [5, 60, 400])
def test_twenty_quiet_days_raise_no_alarm(planted_model: ServedModel, count: int) -> None:
    assert [alarms(measured(planted_model, Day(GRAPH, seed, count))) for seed in range(20)] == [[]] * 20


def test_twenty_quiet_days_of_the_digits_raise_no_alarm(tmp_path: Path) -> None:
    """The demo, with real data: digits that it was not trained on, drawn again."""
    install_demo(tmp_path)
    model = load(Store(tmp_path).model("digits"), 1, Settings(store=tmp_path))
    snapshot = model.snapshot
    held_out = np.flatnonzero(snapshot.split > 0)
    features: Any = snapshot.raw_features()
    for seed in range(20):
        rows = np.random.default_rng(seed).choice(held_out, 300)
        day = Day(GRAPH, seed, 1)
        day.features = np.asarray(features[rows], dtype=np.float64)
        day.neighbors = [snapshot.adjacency.neighbors(np.array([row])) for row in rows]
        assert alarms(measured(model, day)) == []
    day.features[:, 21] = 16 - day.features[:, 21]  # a pixel of the sensor is inverted
    assert alarms(measured(model, day))[:1] == ["features"]
    model.retire()


OPERATIONS: dict[str, list[dict[str, Any]]] = {
    "graph_features": [
        {"op": "set_features", "id": node, "features": [node % 2 * 2 - 1, 9, 1, 1, 0]} for node in range(0, 1000, 3)
    ],
    "graph_degrees": [
        {"op": "add_edge", "source": node, "target": (node + 2 * step) % 1000}
        for node in range(400)
        for step in range(20, 26)
    ],
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_each_change_of_the_live_graph_raises_its_own_kind_and_no_other(
    planted_store: Path, tmp_path: Path, kind: str
) -> None:
    own = shutil.copytree(planted_store, tmp_path / "store")
    with in_thread(own, write_keys=(KEY,), shadow_every=0) as client:
        before = client.get("/drift").json()
        assert {part["verdict"] for name, part in before["kinds"].items() if name.startswith("graph_")} == {"ok"}
        changed = client.post("/graph", json={"operations": OPERATIONS[kind], "upsert": True}, headers=HEADERS)
        assert changed.status_code == 200, changed.text
        until(lambda: client.get("/drift").json().get("sequence") == 1)
        kinds = client.get("/drift").json()["kinds"]
        assert [name for name, part in kinds.items() if part["verdict"] == "drift"] == [kind]
        gauge = f'sgf_drift{{kind="{kind}"}} {kinds[kind]["value"]}'
        assert gauge in client.get("/metrics").text


def test_nodes_of_the_same_kind_leave_the_sums_and_others_change_them(planted_model: ServedModel) -> None:
    rng = np.random.default_rng(3)
    project = planted_model.snapshot.model.project
    for shift, is_drift in ((0.0, False), (1.0, True)):
        states, _ = planted_model.snapshot.model.inputs(planted.noise(rng, rng.integers(0, 2, size=800) * 2 - 1 + shift))
        more = AttentionSums.of_rows("frobenius", *project(states, "query", "key", "value"))
        assert (change_of_sums(planted_model.snapshot.sums + more, planted_model.snapshot.sums) > 0.1) is is_drift


def test_many_nodes_that_came_are_compared_and_the_threshold_of_the_sums_is_that_of_as_many_random_nodes(
    planted_store: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(planted_store, tmp_path / "store"))
    versions = Store(own).model("demo")
    rows = planted.noise(np.random.default_rng(5), np.ones(1000))
    nodes = (Operation("add_node", 1000 + place, row.tolist(), (1, 3)) for place, row in enumerate(rows))
    commit(versions, Operation("remove_node", 0), *nodes)
    model = load(versions, 1, Settings(store=own))
    with closing(model.log.open()) as log:
        replay(model, log)
    counted = count_graph(model)
    assert counted.num_nodes == 1999
    # A node is in one community or the other, so the relative standard deviation of its part in the sums is 1.
    assert counted.sums_threshold == pytest.approx(4 * np.sqrt(2 * 1001) / 1000, rel=0.01)
    assert counted.sums_change > counted.sums_threshold  # all of them came to one community
    reference = Reference(model.snapshot)
    drift = VersionDrift(model, reference, RequestCounts(None, model.id, reference.size))
    drift.graph = counted
    kinds, _ = drift.measure()
    assert {"graph_predictions", "graph_sums"} < set(alarms(kinds))
    assert kinds["graph_features"].worst[0].name == 0
    assert kinds["graph_features"].samples == 1999
    model.retire()


def test_requests_of_all_workers_are_measured_by_any(planted_store: Path) -> None:
    """Every fresh connection may reach either worker; both give the same answer, and so do the metrics."""
    day = Day(GRAPH, seed=1, count=2000).grow_degrees().new_nodes()
    with in_processes(planted_store, workers=2) as (client, process, _lines):
        until(lambda: 'sgf_model_swaps_total{result="taken"} 2.0' in client.get("/metrics").text)
        sent = 0

        def send_and_measure() -> bool:
            nonlocal sent
            for _ in range(4):
                with httpx.Client(base_url=client.base_url, timeout=30) as fresh:
                    fresh.post("/predict", json={"new_nodes": day[sent : sent + 1]}).raise_for_status()
                sent += 1
            (folder,) = Path(tempfile.gettempdir()).glob(f"sgf-metrics-{process.pid}-*")
            return samples(client) >= 60 and len(list(folder.glob("drift_*.counts"))) == 2  # both workers had requests

        until(send_and_measure)
        until(lambda: samples(client) == sent)  # whichever worker answers, none is lost
        assert {samples(client) for _ in range(6)} == {sent}
        with Client(str(client.base_url)) as typed:
            answer = typed.drift()
        assert answer.kinds["degrees"].verdict == "drift"
        assert answer.since is not None
        value = answer.kinds["degrees"].value
        assert f'sgf_drift{{kind="degrees"}} {value}' in client.get("/metrics").text


def samples(client: httpx.Client) -> int:
    with httpx.Client(base_url=client.base_url, timeout=30) as fresh:
        count: int = fresh.get("/drift").json()["kinds"]["degrees"].get("samples", 0)
    return count


def test_counts_of_a_day_are_kept_and_older_ones_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000.0]
    monkeypatch.setattr(request_counts.time, "time", lambda: clock[0])
    counts, other = (RequestCounts(tmp_path, "a" * 64, 3) for _ in range(2))
    strange = RequestCounts(tmp_path, "b" * 64, 3)
    strange.add(np.array([9, 9, 9]))
    assert total(counts) == ([0, 0, 0], None)
    counts.add(np.array([1, 2, 3]))
    clock[0] += 3600
    other.add(np.array([10, 0, 0]))  # as another worker, which ends
    counts.add(np.array([1, 0, 0]))
    assert total(counts) == total(other) == ([12, 2, 3], 1_000_000.0)
    clock[0] += 12 * 3600
    counts.add(np.array([0, 0, 5]))
    assert total(counts) == ([12, 2, 8], 1_000_000.0)
    clock[0] += 12 * 3600 + 1
    assert total(counts) == ([0, 0, 5], 1_046_800.0)
    counts.add(np.array([7, 0, 0]))
    assert total(other) == ([7, 0, 5], 1_046_800.0)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / f"drift_{'a' * 16}_{clock[0]:.3f}_1-1.counts").touch()  # another worker is making its file
    assert other.total()[0].tolist() == [7, 0, 5]


def total(counts: RequestCounts) -> tuple[list[int], float | None]:
    numbers, since = counts.total()
    return numbers.tolist(), since


def test_memory_alone_keeps_a_day_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000.0]
    monkeypatch.setattr(request_counts.time, "time", lambda: clock[0])
    counts = RequestCounts(None, "a" * 64, 1)
    for _ in range(5):
        counts.add(np.array([1]))
        clock[0] += 12 * 3600 + 1
    assert total(counts) == ([1], 1_000_000.0 + 4 * (12 * 3600 + 1))


def test_without_raw_features_their_drift_is_unavailable_and_the_rest_is_there(tmp_path: Path) -> None:
    Store(tmp_path).publish("demo", planted.contents(), onnx=False, raw_data=False, activate=True)
    with in_thread(tmp_path, shadow_every=0) as client:
        question = {"new_nodes": Day(GRAPH, seed=1, count=20).new_nodes()}
        client.post("/predict", json=question).raise_for_status()
        until(lambda: client.get("/drift").json()["kinds"]["degrees"]["verdict"] == "ok")
        kinds = client.get("/drift").json()["kinds"]
        assert kinds["features"]["verdict"] == kinds["graph_features"]["verdict"] == "unavailable"
        assert "--no-raw-data" in kinds["features"]["reason"]
        assert kinds["degrees"]["samples"] == kinds["predictions"]["samples"] == kinds["confidence"]["samples"] == 20
        page = client.get("/metrics").text
        assert 'sgf_drift{kind="features"} 0.0' in page
        assert 'sgf_drift_threshold{kind="features"} 0.0' in page


def test_a_service_without_new_nodes_says_so_and_both_clients_read_it(planted_store: Path) -> None:
    with in_thread(planted_store, shadow_every=0) as client:
        client.post("/predict", json={"nodes": [1, 2]}).raise_for_status()

        async def ask() -> Any:
            async with AsyncClient(str(client.base_url)) as typed:
                return await typed.drift()

        with Client(str(client.base_url)) as typed:
            answer = typed.drift()
        assert answer == asyncio.run(ask())
        assert answer.since is None
        assert answer.kinds["features"].verdict == "no_data"
        assert answer.kinds["features"].reason
        assert answer.kinds["graph_sums"].value == 0


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_labels_and_values_are_compared_one_by_one(tmp_path: Path, task: str) -> None:
    Store(tmp_path).publish("demo", small_contents(config={"task": task}), onnx=False, activate=True)
    model = load(Store(tmp_path).model("demo"), 1, Settings(store=tmp_path))
    rng = np.random.default_rng(1)
    day = Day(small_graph(), 1, 300)
    kinds = measured(model, day)
    assert alarms(kinds) == []
    assert kinds["confidence"].verdict == ("unavailable" if task == "regression" else "ok")
    day.features = rng.normal(size=(300, 5)) * 0.01 + 5
    kinds = measured(model, day)
    assert set(alarms(kinds)) == ({"features", "confidence"} if task == "multilabel" else {"features", "predictions"})
    assert {part.name for part in kinds["predictions"].worst} == {"0", "1", "2"}
    model.retire()


def test_wide_features_are_compared_by_those_in_use() -> None:
    rng = np.random.default_rng(1)
    width = MAX_FEATURES + 100
    dense = np.where(rng.random((60, width)) < np.linspace(0, 0.5, width), 1.0, 0.0)
    assert _watched(dense).tolist() == _watched(_sparse(dense)).tolist()
    columns = _watched(dense)
    assert len(columns) == MAX_FEATURES
    used = np.count_nonzero(dense, axis=0)
    assert used[columns].min() >= np.delete(used, columns).max()
    mixed = MixedRows(dense[::2], _sparse(dense[1::2]), np.arange(60) % 2 == 1)
    for rows in (dense, _sparse(dense), mixed):
        np.testing.assert_array_equal(dense_columns(rows, columns), dense[:, columns])
        part = take_rows(rows, np.array([5, 2, 4, 2]))
        np.testing.assert_array_equal(dense_columns(part, columns), dense[np.ix_([5, 2, 4, 2], columns)])


def _sparse(dense: np.ndarray) -> SparseRows:
    return SparseRows(
        np.append(0, np.cumsum((dense != 0).sum(axis=1))), np.nonzero(dense)[1], dense[dense != 0], dense.shape[1]
    )
