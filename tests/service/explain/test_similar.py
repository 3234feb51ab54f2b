"""POST /similar: the nearest embeddings, of the graph as it is now."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model_store import Snapshot, Store
from service.explain import similar_nodes
from service.explain.questions import SimilarQuestion
from service.explain.similar_rows import list_similar
from sgformer_client import Client, new_node
from tests.model_store.format.abuse import drop_embeddings, forge
from tests.model_store.samples import small_contents, small_graph
from tests.service.explain.test_explain import _served
from tests.service.live.rebuilt import KEY, add_node, commit
from tests.service.serving import in_thread, refused

TOLERANCE = 2e-6


def similar(client: httpx.Client, **question: Any) -> dict[str, Any]:
    response = client.post("/similar", json=question)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def embeddings(client: httpx.Client, **question: Any) -> np.ndarray:
    entries = client.post("/embed", json=question).json()["predictions"]
    rows = np.array([entry["embedding"] for entry in entries])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def check(answer: dict[str, Any], place: int, query: np.ndarray, others: dict[Any, np.ndarray], k: int) -> None:
    """Against the cosines of all embeddings."""
    cosines = {node: float(query @ row) for node, row in others.items()}
    entries = answer["results"][place]["neighbors"]
    assert len(entries) == k
    similarities = [entry["similarity"] for entry in entries]
    np.testing.assert_allclose(similarities, sorted(cosines.values())[: -k - 1 : -1], atol=TOLERANCE)
    np.testing.assert_allclose(similarities, [cosines[entry["node"]] for entry in entries], atol=TOLERANCE)


def test_known_and_new_nodes(client: httpx.Client, features: list[float]) -> None:
    node = {"id": "a", "features": features, "neighbors": [0, 3]}
    answer = similar(client, nodes=[5, 59], new_nodes=[node], k=7)
    rows = dict(enumerate(embeddings(client, nodes=list(range(60)))))
    for place, known in enumerate((5, 59)):
        check(answer, place, rows[known], {other: row for other, row in rows.items() if other != known}, 7)
    check(answer, 2, embeddings(client, new_nodes=[node])[0], rows, 7)
    assert [entry["node"] for entry in answer["results"]] == [5, 59, "a"]
    assert (answer["exact"], answer["recall"], answer["model"]) == (True, None, "demo")
    assert len(similar(client, nodes=[5], k=100)["results"][0]["neighbors"]) == 59


def test_the_graph_as_it_is_now(live: httpx.Client) -> None:
    sequence = commit(live, add_node(100, 4, 0, 1), {"op": "remove_node", "id": 1})
    answer = similar(live, nodes=[100, 0], k=5)
    ids = [node for node in (*range(60), 100) if node != 1]
    rows = dict(zip(ids, embeddings(live, nodes=ids), strict=True))
    for place, known in enumerate((100, 0)):
        check(answer, place, rows[known], {other: row for other, row in rows.items() if other != known}, 5)
    assert (answer["sequence"], answer["exact"]) == (sequence, True)
    assert "removed" in refused(live.post("/similar", json={"nodes": [1]}), 404, "unknown_node")


@pytest.fixture
def indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose version has an index, and is too large for a scan of all nodes after a change."""
    monkeypatch.setattr("model_store.publish.embedding_files.INDEX_FROM_NODES", 100)
    Store(tmp_path).publish(
        "demo", small_contents(graph=small_graph(nodes=2000), config={"hidden": 8}), onnx=False, activate=True
    )
    return tmp_path


def test_a_large_graph_is_searched_by_its_index(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_nodes, "SCANNED_NODES", 50)
    with Store(indexed).model("demo").open() as snapshot:
        model = _served(snapshot)
        answer = list_similar(model, SimilarQuestion(nodes=list(range(0, 2000, 20)), k=10))
        assert (answer["exact"], answer["recall"]) == (False, snapshot.manifest.embeddings["index"]["recall"])
        assert answer["recall"] >= 0.99
        assert _recall(snapshot, answer) >= 0.99


def _recall(snapshot: Snapshot, answer: dict[str, Any]) -> float:
    stored, hits = np.asarray(snapshot.unit_embeddings), []
    for entry in answer["results"]:
        cosines = stored @ stored[entry["node"]]
        cosines[entry["node"]] = -2
        hits.append(sum(other["similarity"] >= np.sort(cosines)[-10] - 1e-5 for other in entry["neighbors"]))
    return float(np.mean(hits)) / 10


def test_nodes_that_came_since_are_found_beside_the_index(indexed: Path, features: list[float]) -> None:
    """And removed ones are not. All similarities are those of the graph as it is now."""
    with in_thread(indexed, write_keys=(KEY,)) as client:
        twin = {"id": 5000, "features": features, "neighbors": [3, 4]}
        commit(client, {"op": "add_node", **twin})
        node = twin | {"id": "a"}
        answer = similar(client, new_nodes=[node], nodes=[5000], k=3)
        assert answer["results"][1]["neighbors"][0]["node"] == 5000
        gone = answer["results"][1]["neighbors"][1]["node"]
        commit(client, {"op": "remove_node", "id": gone})
        answer = similar(client, new_nodes=[node], nodes=[5000], k=3)
        names = [entry["node"] for entry in answer["results"][0]["neighbors"]]
        assert gone not in names
        assert 5000 not in names
        rows = embeddings(client, nodes=[5000, *names])
        cosines = rows[1:] @ rows[0]
        np.testing.assert_allclose([e["similarity"] for e in answer["results"][0]["neighbors"]], cosines, atol=TOLERANCE)


def test_a_large_changed_graph_gives_candidates_from_the_index(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_nodes, "SCANNED_NODES", 50)
    with Store(indexed).model("demo").open() as snapshot:
        model = _served(snapshot)
        draft = model.live.graph.draft()
        for other in range(100, 120):
            draft.add_edge(7, other)
        model.live.graph.apply(draft.changes())
        answer = list_similar(model, SimilarQuestion(nodes=[7, *range(500, 600)], k=10))
        assert answer["exact"] is False
        rows = model.known(np.arange(2000), True).embeddings
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        hits = []
        for entry in answer["results"]:
            cosines = rows @ rows[entry["node"]]
            cosines[entry["node"]] = -2
            hits.append(sum(other["similarity"] >= np.sort(cosines)[-10] - 1e-5 for other in entry["neighbors"]))
    assert np.mean(hits) / 10 >= 0.99


def test_a_snapshot_without_embeddings_says_so(store: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(store, tmp_path / "store"))
    folder = own / "demo" / "1"
    forge(folder, lambda content: drop_embeddings(folder, content))
    with in_thread(own) as client:
        assert "sgf-train refresh" in refused(client.post("/similar", json={"nodes": [1]}), 404, "no_embeddings")
        assert "sgf-train refresh" in refused(client.get("/map"), 404, "no_embeddings")
        assert client.post("/explain", json={"node": 1}).status_code == 200


@pytest.mark.parametrize(
    ("question", "status", "code", "words"),
    [
        ({}, 422, "invalid", "asks nothing"),
        ({"nodes": [0], "k": 0}, 422, "invalid", "k"),
        ({"nodes": [0], "k": 101}, 422, "invalid", "k"),
        ({"nodes": [0] * 1001}, 413, "batch_too_large", "1,001 nodes"),
        ({"nodes": [99]}, 404, "unknown_node", "99"),
        ({"new_nodes": [{"id": "a", "features": [3e38] * 5}]}, 422, "no_answer", "'a'"),
        ({"new_nodes": [{"id": "a", "features": [1e39] * 5}]}, 422, "invalid", "'a'"),
    ],
)
def test_what_is_wrong_is_said(client: httpx.Client, question: Any, status: int, code: str, words: str) -> None:
    assert words in refused(client.post("/similar", json=question), status, code)


def test_the_client_has_a_method(client: httpx.Client, features: list[float]) -> None:
    with Client(str(client.base_url)) as own:
        answer = own.similar([3], [new_node("a", features)], k=2)
        assert [len(entry.neighbors) for entry in answer.results] == [2, 2]
        assert answer.exact
