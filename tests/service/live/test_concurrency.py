"""Requests while the graph changes: every answer is that of the graph at the sequence that it names."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.live.rebuilt import KEY, Rebuilt, add_node, commit, features, random_operation
from tests.service.serving import CONTENTS, in_thread, until

COMMITS, READERS = 30, 3
ASSUMED = [add_node(2000, 8, 2), {"op": "set_features", "id": 2, "features": features(9)}]


def question(rng: np.random.Generator, with_assumption: bool) -> dict[str, Any]:
    """Known nodes, of which some may be gone, and a new node with neighbours among the last nodes, which stay."""
    nodes = [int(node) for node in rng.choice(40, 2, replace=False)] + [41]
    new = {"id": "a", "features": features(int(rng.integers(99))), "neighbors": [41, 42]}
    asked = {"nodes": nodes, "new_nodes": [new]}
    return asked | {"assuming": ASSUMED, "nodes": [41, 2000], "new_nodes": []} if with_assumption else asked


def wait_for_more(answers: list[Any]) -> None:
    before = len(answers)
    until(lambda: len(answers) > before)


@pytest.mark.parametrize(
    ("settings", "with_assumption"),
    [({}, False), ({"inline_cost": 0}, False), ({}, True)],
    ids=["loop", "process", "assumed"],
)
def test_answers_during_commits_are_those_of_their_sequence(own_store: Path, settings: Any, with_assumption: bool) -> None:
    graphs, stop = [Rebuilt(CONTENTS)], threading.Event()
    answers: list[tuple[dict[str, Any], httpx.Response]] = []

    def ask(seed: int, url: str) -> None:
        rng = np.random.default_rng(seed)
        with httpx.Client(base_url=url, timeout=30) as client:
            while not stop.is_set():
                asked = question(rng, with_assumption)
                answers.append((asked, client.post("/predict", json=asked)))

    with in_thread(own_store, write_keys=(KEY,), **settings) as client, ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(ask, seed, str(client.base_url)) for seed in range(READERS)]
        try:
            rng = np.random.default_rng(1)
            while len(graphs) <= COMMITS:
                graph = graphs[-1].copy()
                operation = random_operation(rng, graph)
                if operation["op"] != "remove_node" or operation["id"] not in (2, 41, 42):
                    commit(client, operation)
                    graphs.append(graph.apply(operation))
                    wait_for_more(answers)
        finally:
            stop.set()
        for reader in readers:
            reader.result()
    compare(graphs, answers)


def compare(graphs: list[Rebuilt], answers: list[tuple[dict[str, Any], httpx.Response]]) -> None:
    sequences = set()
    for asked, response in answers[:: max(1, len(answers) // 60)]:
        body = response.json()
        if response.status_code == 404:
            node = body["details"]["node"]
            assert node in asked["nodes"]
            assert any(node not in graph.features for graph in graphs)
            continue
        assert response.status_code == 200, response.text
        graph = graphs[body.get("sequence", 0)].copy().apply(*asked.get("assuming", ()))
        sequences.add(body.get("sequence", 0))
        expected = graph.probabilities()
        for new in asked["new_nodes"]:
            expected["a"] = graph.copy().apply({"op": "add_node", **new}).probabilities()["a"]
        for entry in body["predictions"]:
            np.testing.assert_allclose(entry["probabilities"], expected[entry["node"]], atol=1e-5)
    assert len(sequences) > 3, "answers and commits overlapped"
