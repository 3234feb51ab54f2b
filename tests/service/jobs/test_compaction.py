"""Compaction over HTTP and by itself: the same answers, no lost change, and when it starts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Store
from service.graph_cli.__main__ import main
from service.jobs.compaction import COMPACTION, AutomaticCompaction, Overlay
from service.jobs.job import Job
from service.jobs.ledger import JobConflict
from service.jobs.submission import Submission
from service.jobs.training_process import _environment
from service.settings import Settings
from sgformer.request_time.inference import probabilities
from tests.model_store.live_graph.commits import answers
from tests.service.jobs.retraining import ADMIN, TOKEN, data_root, wait_for_end, weak_model
from tests.service.live.rebuilt import KEY
from tests.service.serving import Running, in_processes, refused, until

WRITE = {"authorization": f"Bearer {KEY}"}


def add_node(client: httpx.Client, node: int, *neighbors: int) -> int:
    features = np.random.default_rng(node).normal(size=6).tolist()
    operation = {"op": "add_node", "id": node, "features": features, "neighbors": neighbors, "label": node % 3}
    answer = client.post("/graph", json={"operations": [operation]}, headers=WRITE)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["sequence"])


def predict(client: httpx.Client, nodes: list[int], sequence: int) -> tuple[int, np.ndarray]:
    """The version that answers, and the probabilities."""
    answer = client.post("/predict", json={"nodes": nodes, "min_sequence": sequence}, headers=WRITE).json()
    return answer["version"], np.array([prediction["probabilities"] for prediction in answer["predictions"]])


def serve(folder: Path, **settings: str) -> Any:
    root, store = data_root(folder), folder / "models"
    weak_model(store, root)
    common = {"data_root": str(root), "admin_token": TOKEN, "write_keys": KEY, "model": "demo"}
    return in_processes(store, **(common | settings))


def test_a_compaction_under_commits_changes_no_answer_and_loses_no_change(tmp_path: Path) -> None:
    with serve(tmp_path, workers=2) as running:
        client = running.client
        error = client.post("/admin/graph/compact", headers=ADMIN)
        assert "the graph has not changed since version 1" in refused(error, 409, "conflict")
        sequence = [add_node(client, node, 3, node - 1 if node > 400 else 5) for node in range(400, 420)][-1]
        job = client.post("/admin/graph/compact", headers=ADMIN)
        assert job.status_code == 202
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(wait_for_end, client, job.json()["job"])
            committed = 420
            while not ended.done():
                sequence = add_node(client, committed, committed - 1)
                committed += 1
        assert (ended.result()["state"], ended.result()["live"]) == ("succeeded", True)
        until(lambda: predict(client, [3], sequence)[0] == 2)
        nodes = [3, *range(400, committed, 7)]
        version, answers_of_2 = predict(client, nodes, sequence)
        state = client.get("/graph", headers=WRITE).json()
        assert (version, state["nodes"], state["sequence"]) == (2, committed, sequence)
        assert state["snapshot_sequence"] >= 20
        versions = Store(tmp_path / "models").model("demo")
        logits = answers(versions, 1)  # version 1 with all changes
        expected = probabilities(np.array([logits[node] for node in nodes]), "multiclass")
        np.testing.assert_allclose(answers_of_2, expected, atol=1e-5)
        roll_back_under_commits(client, versions, nodes, committed)
        position = versions.manifest(2).live or {}
        assert (position["graph"], position["sequence"]) == (state["graph"], state["snapshot_sequence"])


def roll_back_under_commits(client: httpx.Client, versions: Any, nodes: list[int], first: int) -> None:
    """Version 1 applies all changes again, and answers as before."""
    assert client.post("/admin/models/rollback", headers=ADMIN).status_code == 200
    for node in range(first, first + 200):
        sequence = add_node(client, node, node - 1)
        if predict(client, [3], sequence)[0] == 1:
            break
    version, answers_of_1 = predict(client, nodes, sequence)
    logits = answers(versions, 1)
    np.testing.assert_allclose(
        answers_of_1, probabilities(np.array([logits[node] for node in nodes]), "multiclass"), atol=1e-5
    )
    assert version == 1


def test_a_graph_that_has_changed_much_is_compacted_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(tmp_path, compact_changes="5") as running:
        _check_automatic(running)
        _check_command(running.client, capsys)


def _check_command(client: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compact", "--url", str(client.base_url), "--key", TOKEN]
    sequence = add_node(client, 410, 1)
    assert main(command) == 0
    assert capsys.readouterr().out == "demo version 3 contains the changes; it is live\n"
    until(lambda: predict(client, [410], sequence)[0] == 3)
    assert main(command) == 1
    assert "there is nothing to compact (409 conflict)" in capsys.readouterr().err
    assert main([*command[:-1], "wrong"]) == 1
    assert "(403 forbidden)" in capsys.readouterr().err


def _check_automatic(running: Running) -> None:
    client = running.client
    for node in range(400, 403):
        sequence = add_node(client, node, 1)
    assert client.get("/admin/jobs", headers=ADMIN).json()["jobs"] == []
    for node in range(403, 406):
        sequence = add_node(client, node, 1)
    _, before = predict(client, [1, 400], sequence)
    until(lambda: predict(client, [1], sequence)[0] == 2)
    np.testing.assert_allclose(predict(client, [1, 400], sequence)[1], before, atol=1e-5)
    (job,) = client.get("/admin/jobs", headers=ADMIN).json()["jobs"]
    assert (job["request"]["data"], job["request"]["refresh"]) == ("live", True)
    assert wait_for_end(client, job["id"])["state"] == "succeeded"


@pytest.mark.parametrize(
    ("limit", "changed", "nodes", "starts"),
    [
        (50_000, 49_999, 10**6, False),
        (50_000, 50_000, 10**6, True),
        (50_000, 999, 400, False),
        (50_000, 1000, 400, True),
        (50_000, 5000, 20_000, True),
        (50_000, 4999, 20_000, False),
        (0, 10**6, 10**6, False),
    ],
)
def test_when_a_compaction_starts(limit: int, changed: int, nodes: int, starts: bool) -> None:
    submitted: list[tuple[Submission, str, str | None]] = []

    def submit(submission: Submission, model: str, key: str | None) -> Job:
        submitted.append((submission, model, key))
        return Job.new(model, {})

    settings = Settings(compact_changes=limit)
    AutomaticCompaction(settings, submit, lambda: Overlay("demo", "a" * 64, changed, nodes)).step()
    assert [entry[:2] for entry in submitted] == ([(COMPACTION, "demo")] if starts else [])


def test_a_snapshot_is_compacted_once_an_hour_and_another_job_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.jobs.compaction.CHECK_SECONDS", 0)
    keys: list[str | None] = []

    def submit(_submission: Submission, model: str, key: str | None) -> Job:
        keys.append(key)
        raise JobConflict("demo is being trained")

    overlay = Overlay("demo", "a" * 64, 60_000, 10**6)
    compaction = AutomaticCompaction(Settings(), submit, lambda: overlay)
    for now in (7200.0, 7300.0, 10_900.0):
        monkeypatch.setattr("service.jobs.compaction.time.time", lambda now=now: now)
        compaction.step()
    assert keys[0] == keys[1] != keys[2]
    AutomaticCompaction(Settings(), submit, lambda: None).step()
    assert len(keys) == 3


def test_a_training_gets_the_address_of_the_log_but_no_other_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGF_ADMIN_TOKEN", TOKEN)
    settings = Settings(redis_url="redis://cache:6379/0", redis_password_file=tmp_path / "password")
    assert {name for name in _environment(settings) if name.startswith("SGF_")} == {"SGF_DATA_ROOT", "SGF_DEVICE"}
    environ = _environment(replace(settings, graph_log="redis"))
    assert {name for name in environ if name.startswith("SGF_")} == {
        *("SGF_DATA_ROOT", "SGF_DEVICE", "SGF_GRAPH_LOG", "SGF_REDIS_URL", "SGF_REDIS_PASSWORD_FILE")
    }
    assert environ["SGF_REDIS_URL"] == "redis://cache:6379/0"
    assert environ["SGF_DEVICE"] == "auto"
