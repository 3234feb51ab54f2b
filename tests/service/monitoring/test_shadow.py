"""Shadow verification: a damaged state or a stale sum is found, a right answer never is, and requests never wait for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from model_store.live_graph.operations import Operation
from service.engines import served_model
from service.engines.served_model import ServedModel, load
from service.live.replica import replay
from service.monitoring import shadow
from service.monitoring.shadow import CheckedAnswer, CheckResult
from service.predict.questions import parse_question
from service.predict.rows import rows_of
from service.settings import Settings
from tests.model_store.live_graph.commits import commit
from tests.service.live.rebuilt import HEADERS, KEY, add_node, edge
from tests.service.serving import CONTENTS, in_processes, in_thread, until


@pytest.fixture
def model(own_store: Path) -> Iterator[ServedModel]:
    served = load(Store(own_store).model("demo"), 1, Settings(store=own_store))
    yield served
    served.retire()


def answered(model: ServedModel, **question: Any) -> CheckedAnswer | None:
    """As the service answers it."""
    parsed = parse_question(json.dumps(question).encode(), 10**6)
    rows: Any = rows_of(model, parsed, [*parsed.nodes, *parsed.new_nodes], False, 10**6)
    return CheckedAnswer.of(model, rows, rows.compute(model, [rows])[0])


def check(model: ServedModel, **question: Any) -> CheckResult:
    answer = answered(model, **question)
    assert answer is not None
    return CheckedAnswer.compute(model, [answer])[0]


def new_node(seed: int, *neighbors: int) -> dict[str, Any]:
    values = np.random.default_rng(seed).normal(size=5).round(3).tolist()
    return {"id": f"n{seed}", "features": values, "neighbors": list(neighbors)}


JOINT = {"new_nodes": [new_node(1, 0, 3), new_node(2, 4)], "joint": True, "edges": [["n1", "n2"]]}
SPARSE = {"new_nodes": [{"id": "s", "features": {"indices": [1, 3], "values": [2, -1]}, "neighbors": [5]}, new_node(3, 0)]}
QUESTIONS = [{"nodes": [0]}, {"nodes": [7, 59, 3]}, {"new_nodes": [new_node(1, 0, 3)]}, SPARSE, JOINT]


@pytest.mark.parametrize("question", QUESTIONS, ids=["hub", "several", "new", "sparse", "joint"])
def test_right_answers_pass(model: ServedModel, question: dict[str, Any]) -> None:
    for _ in range(3):  # a node is chosen at random
        assert 0 < check(model, **question).error < 1e-6


def test_right_answers_pass_after_changes_of_the_graph(own_store: Path) -> None:
    versions = Store(own_store).model("demo")
    commit(versions, Operation("add_node", 100, [1.0, 2.0, 0.5, -1.0, 0.1], (0, 4)), Operation("remove_node", 5))
    commit(versions, Operation("set_features", 3, [0.1, -2.0, 0.5, 1.0, 0.3]), Operation("add_edge", source=3, target=100))
    model = load(versions, 1, Settings(store=own_store))
    with closing(model.log.open()) as log:
        replay(model, log)
    for question in ({"nodes": [100]}, {"nodes": [3]}, {"nodes": [0]}, {"new_nodes": [new_node(1, 100, 3)]}, JOINT):
        assert 0 < check(model, **question).error < 1e-6
    model.live.graph.sums = model.snapshot.sums  # as if the changes had not reached the sums
    assert check(model, nodes=[40]).error > 1e-3
    model.retire()


def test_a_damaged_state_a_stale_overlay_and_a_wrong_sum_are_found(model: ServedModel) -> None:
    snapshot, question = model.snapshot, {"new_nodes": [new_node(1, 0, 3)]}
    states = snapshot.states
    damaged = np.array(states.layers[1])
    damaged[3] += 0.05
    snapshot.states = replace(states, layers=(states.layers[0], damaged, *states.layers[2:]))
    assert check(model, **question).error > 1e-4
    snapshot.states = states
    assert check(model, **question).error < 1e-6
    logits = np.array(snapshot._logits)
    logits[7, 0] += 0.01
    snapshot._logits = logits
    assert check(model, nodes=[7]).error > 1e-4
    assert check(model, nodes=[8]).error < 1e-6
    answer = answered(model, nodes=[8])
    assert answer is not None
    wrong = replace(answer, sums=replace(answer.sums, key=answer.sums.key * 1.001))
    assert wrong._check(model).error > 1e-4
    fewer = replace(answer, sums=replace(answer.sums, count=answer.sums.count - 1))
    assert fewer._check(model).error == np.inf
    assert not replace(answer, logits=answer.logits * np.nan)._check(model).error <= 1e9


def test_answers_that_cannot_be_verified_are_left_out(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(model, new_nodes=[new_node(1, 0)], mode="frozen") is None
    monkeypatch.setattr(shadow, "MAX_JOINT", 1)
    assert answered(model, **JOINT) is None
    model.live.graph.max_input = 1e-6  # float32 loses digits above it
    assert check(model, new_nodes=[new_node(1, 0)]).skipped == "extreme"
    monkeypatch.setattr(shadow, "MAX_ENTRIES", 3)
    assert check(model, nodes=[0]).skipped == "too_large"


def test_snapshots_without_raw_features_are_verified_from_their_inputs(tmp_path: Path) -> None:
    Store(tmp_path).publish("demo", CONTENTS, onnx=False, raw_data=False, activate=True)
    model = load(Store(tmp_path).model("demo"), 1, Settings(store=tmp_path))
    assert 0 < check(model, nodes=[3]).error < 1e-6
    model.retire()


def value(client: httpx.Client, name: str) -> float:
    """Of a metric, over all labels."""
    page = client.get("/metrics").text
    return sum(float(number) for number in re.findall(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE))


def test_a_damaged_state_is_found_within_a_thousand_requests(own_store: Path) -> None:
    """With the default settings, while the service runs: the pages of the file are those that workers have mapped."""
    folder = own_store / "demo" / "1" / "states"
    with in_processes(own_store) as (client, _process, lines):
        states = np.load(folder / "aggregate_2.npy", mmap_mode="r+")
        states += np.float32(0.05)
        for number in range(1000):
            question = {"new_nodes": [new_node(number, number % 50, (number * 7 + 1) % 59)]}
            client.post("/predict", json=question).raise_for_status()
        until(lambda: value(client, 'sgf_shadow_checks_total{result="failed"}') >= 1)
        assert value(client, "sgf_shadow_error") > 1e-4
        assert value(client, 'sgf_shadow_checks_total{result="passed"}') == 0
        until(lambda: any("states or sums are damaged or stale" in line for line in lines))


def test_a_stale_sum_of_the_live_graph_is_found_and_right_ones_pass(
    own_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[ServedModel] = []
    original = served_model.ServedModel.__init__

    def remember(self: ServedModel, *arguments: Any) -> None:
        original(self, *arguments)
        models.append(self)

    monkeypatch.setattr(served_model.ServedModel, "__init__", remember)
    with in_thread(own_store, write_keys=(KEY,), shadow_every=2) as client:
        operations = [add_node(100, 1, 0, 4), edge("add_edge", 7, 100)]
        client.post("/graph", json={"operations": operations}, headers=HEADERS).raise_for_status()

        def checks(result: str) -> float:
            client.post("/predict", json={"nodes": [100, 7, 20]}).raise_for_status()
            return value(client, f'sgf_shadow_checks_total{{result="{result}"}}')

        until(lambda: checks("passed") >= 2)
        assert checks("failed") == 0
        models[0].live.graph.sums = models[0].snapshot.sums
        until(lambda: checks("failed") >= 1)
        assert value(client, "sgf_shadow_error") > 1e-4


def test_no_answer_waits_for_a_check_and_0_switches_it_off(own_store: Path) -> None:
    with in_thread(own_store, shadow_every=1, cache_bytes=0) as client:
        for _ in range(50):
            client.post("/predict", json={"nodes": [1]}).raise_for_status()
        assert value(client, 'sgf_shadow_skips_total{reason="busy"}') >= 1  # the process starts meanwhile
        until(lambda: value(client, 'sgf_shadow_checks_total{result="passed"}') >= 1)
    with in_thread(own_store, shadow_every=0) as client:
        for _ in range(20):
            client.post("/predict", json={"nodes": [1]}).raise_for_status()
        page = client.get("/metrics").text
        assert not re.search(r"^sgf_shadow_\w+_total\{.*\} [1-9]", page, re.MULTILINE)


def test_the_budget_limits_the_checks(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "MAX_SHARE", 0.0)
    with in_thread(own_store, shadow_every=1, cache_bytes=0) as client:

        def skipped() -> bool:
            client.post("/predict", json={"nodes": [1]}).raise_for_status()
            return value(client, 'sgf_shadow_skips_total{reason="budget"}') >= 3

        until(skipped)
        assert value(client, 'sgf_shadow_checks_total{result="passed"}') == 1  # the first is free
