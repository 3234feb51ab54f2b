"""The live graph under `docker compose up`: its log in Redis, two services that follow it, and compaction by the worker."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.deploy.docker_engine import docker
from tests.deploy.stack import WRITE_KEY, Stack
from tests.deploy.tools import thorough
from tests.service.serving import until

pytestmark = thorough
NODE = {"op": "add_node", "id": 5000, "features": {"indices": [12, 20], "values": [9, 9]}, "neighbors": [0, 92]}
STATE = ("sequence", "hash", "nodes", "edges")
LOGIT_TOLERANCE = 1e-4
"""Between the live graph and the snapshot that a compaction makes of it."""


def state(client: httpx.Client) -> dict[str, Any]:
    """Equal states prove equal graphs."""
    graph = client.get("/graph").raise_for_status().json()
    return {name: graph[name] for name in STATE}


def add(stack: Stack, *operations: dict[str, Any]) -> dict[str, Any]:
    head, body = {"authorization": f"Bearer {WRITE_KEY}"}, {"operations": operations, "upsert": True}
    answer: dict[str, Any] = stack.client.post("/graph", json=body, headers=head).raise_for_status().json()
    return answer


def logits(stack: Stack) -> list[float]:
    """Of the node that was added."""
    return list(stack.client.post("/explain", json={"node": 5000}).raise_for_status().json()["logits"])


def redis_confirms_flushes(stack: Stack) -> bool:
    """Redis knows WAITAOF since 7.2; a stand-in for its image may be older."""
    (version,) = re.findall(r"v=(\d+)\.(\d+)", stack.compose.inside("redis", "redis-server", "--version").stdout)
    return tuple(map(int, version)) >= (7, 2)


def test_both_services_have_a_change_and_keep_it_when_all_are_killed(stack: Stack) -> None:
    assert stack.client.post("/graph", json={"operations": [NODE]}).status_code == 401
    answer = add(stack, NODE, {"op": "add_edge", "source": 5, "target": 92})
    assert answer["durability"] == ("aof" if redis_confirms_flushes(stack) else "memory")
    changed = state(stack.client)
    assert changed["sequence"] == answer["sequence"] == 1
    until(lambda: state(stack.admin) == changed)
    services = ("redis", "service", "admin")
    for service in services:
        docker("kill", stack.compose.container(service))
    stack.start(*services)
    assert state(stack.client) == state(stack.admin) == changed


def test_explanations_similar_nodes_and_drift_are_those_of_the_changed_graph(stack: Stack) -> None:
    add(stack, NODE)
    sequence, ask = state(stack.client)["sequence"], stack.client.post
    new = NODE | {"id": "new"}
    del new["op"]
    explained = ask("/explain", json={"node": 5000}).raise_for_status().json()
    similar = ask("/similar", json={"nodes": [5000], "k": 3}).raise_for_status().json()
    assert explained["sequence"] == similar["sequence"] == sequence
    assert {neighbor["node"] for neighbor in explained["neighbors"]} == {0, 92}
    assert [len(result["neighbors"]) for result in similar["results"]] == [3]
    ask("/predict", json={"new_nodes": [new]}).raise_for_status()
    until(lambda: has_counted(stack.client.get("/drift").raise_for_status().json(), sequence))


def has_counted(drift: dict[str, Any], sequence: int) -> bool:
    """Requests and changes are counted after they are answered."""
    return drift.get("sequence") == sequence and drift["kinds"]["features"].get("samples", 0) >= 1


def test_the_worker_compacts_the_log_into_a_version_with_the_same_answers(stack: Stack) -> None:
    add(stack, NODE)
    before, answer, version = state(stack.client), logits(stack), stack.version()
    job = stack.admin.post("/admin/graph/compact", json={}).raise_for_status().json()["job"]
    assert stack.wait_for_job(job)["version"] == version + 1
    graph = stack.client.get("/graph").raise_for_status().json()
    assert ({name: graph[name] for name in STATE}, graph["snapshot_sequence"]) == (before, before["sequence"])
    assert logits(stack) == pytest.approx(answer, abs=LOGIT_TOLERANCE)
