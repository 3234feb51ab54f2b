"""Publishing a trained model, and refreshing a version over a graph that has grown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_store import DataError, FeatureColumn, FeatureSchema, Store
from sgformer import NewNodes, SGFormer, summarize
from tests.training.samples import config, labelled, user_arrays, write_folder
from training import publish, refresh
from training.__main__ import main
from training.fit.loop import TrainingConfig, train
from training.report.page import render_report


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def test_a_new_node_is_answered_like_the_same_node_as_a_known_node(store: Store) -> None:
    """A new node of version 1 is a known node of version 2, whose graph contains it: both answers are equal."""
    data = labelled()
    trained = train(config(data, feature_transform="standard"), data, TrainingConfig(epochs=5))
    publish(trained.model, data.graph, store=store, name="demo", onnx=False, activate=True)
    features, neighbors = np.full((1, 6), 0.3, dtype=np.float32), [3, 14, 159]
    grown = data.graph.with_nodes(features, [[data.graph.num_nodes] * 3, neighbors])
    assert refresh(store, "demo", grown, onnx=False, activate=True) == 2
    new = NewNodes.build(features, [neighbors], num_nodes=data.graph.num_nodes, num_features=6)
    versions = store.model("demo")
    with versions.open(1) as before, versions.open(2) as after:
        new_answer, known = before.extended(new), after.known(np.array([data.graph.num_nodes]))
        np.testing.assert_allclose(new_answer.logits, known.logits, atol=1e-5)
        np.testing.assert_allclose(new_answer.embeddings, known.embeddings, atol=1e-5)
        assert new_answer.exactness == "exact"
        assert after.manifest.training["refreshed_from"] == {"version": 1, "snapshot": before.id}
        for name, array in before.weights.items():
            np.testing.assert_array_equal(array, after.weights[name])


def test_a_refresh_needs_the_same_features(store: Store) -> None:
    data = labelled()
    publish(SGFormer(config(data)).eval(), data.graph, store=store, name="demo", onnx=False, activate=True)
    with pytest.raises(DataError, match="the model reads 6 features, the new graph has 5"):
        refresh(store, "demo", type(data.graph)(np.asarray(data.graph.features)[:, :5], data.graph.adjacency))


def test_a_pyg_model_with_its_data_is_published(store: Store) -> None:
    import torch
    from torch_geometric.data import Data
    from torch_geometric.nn.models import SGFormer as PygSGFormer

    data = labelled()
    pyg_model = PygSGFormer(6, 8, 3, trans_num_layers=1, gnn_num_layers=2, graph_weight=0.7).eval()
    graph = Data(x=torch.tensor(data.graph.features), edge_index=torch.tensor(data.graph.adjacency.edge_index()))
    graph.y = torch.tensor(data.labels)
    for part, number in (("train", 0), ("val", 1), ("test", 2)):
        graph[f"{part}_mask"] = torch.tensor(data.split == number)
    publish(pyg_model, graph, store=store, name="pyg", onnx=False, activate=True)
    with torch.no_grad():
        expected = pyg_model(graph.x, graph.edge_index, torch.zeros(300, dtype=torch.long)).exp().numpy()
    with store.model("pyg").open() as snapshot:
        logits = snapshot.known(np.arange(300)).logits
        np.testing.assert_array_equal(snapshot.labels, data.labels)
        np.testing.assert_array_equal(snapshot.split, data.split)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    graph.y = torch.zeros(300, 2)  # no classes
    del graph.val_mask
    publish(pyg_model, graph, store=store, name="pyg", onnx=False)
    with store.model("pyg").open(2) as snapshot:
        assert (snapshot.labels, snapshot.split) == (None, None)
        assert snapshot.raw_features() is not None
    with pytest.raises(DataError, match="cannot publish a SimpleNamespace, expected an SGFormer"):
        publish(SimpleNamespace(), graph, store=store, name="pyg")


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_the_data_of_training_is_stored_unless_an_option_says_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: Any
) -> None:
    y = {"multiclass": np.arange(20) % 3, "multilabel": np.eye(20, 2), "regression": np.arange(20) / 7}[task]
    arrays = user_arrays(y=y, split=np.arange(20) % 3)
    np.savez(tmp_path / "graph.npz", **arrays)
    command = ["--data", str(tmp_path / "graph.npz"), "--epochs", "2", "--hidden", "4", "--store", str(tmp_path / "models")]
    assert main([*command, "--quiet"]) == 0
    assert main([*command, "--quiet", "--no-raw-data"]) == 0
    versions = Store(tmp_path / "models").model("graph")
    with versions.open(1) as snapshot:
        np.testing.assert_array_equal(snapshot.raw_features(), arrays["x"].astype(np.float32))
        np.testing.assert_array_equal(snapshot.labels, y if task == "multiclass" else y.astype(np.float32))
        np.testing.assert_array_equal(snapshot.split, arrays["split"])
    with versions.open(2) as snapshot:
        assert (snapshot.raw_features(), snapshot.labels, snapshot.split) == (None, None, None)


def test_a_refresh_keeps_the_names_of_the_features_and_the_reading(store: Store) -> None:
    data = labelled()
    kept: dict[str, Any] = {"features": FeatureSchema(tuple(FeatureColumn(name, "number") for name in "abcdef"))}
    kept["reading"] = {"impute": "median"}
    model = SGFormer(config(data)).eval()
    publish(
        model, data.graph, store=store, name="demo", onnx=False, activate=True, live={"graph": "g", "sequence": 3}, **kept
    )
    refresh(store, "demo", data.graph, onnx=False)
    manifest = store.model("demo").manifest(2)
    assert {"features": manifest.features, "reading": manifest.reading, "live": manifest.live} == kept | {"live": None}


def test_csv_files_are_trained_on_and_refreshed_after_they_have_grown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "pets", "csv")
    where = ["--store", str(tmp_path / "models"), "--json", "--activate"]
    assert main(["--data", str(folder), "--epochs", "3", "--hidden", "4", *where]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["model"], first["version"], first["live"]) == ("pets", 1, True)
    ids = [f"n{number}" for number in range(21)]
    changes: dict[str, Any] = {"id": ids, "height": [0.5] * 21, "width": list(range(21)), "label": ["red"] * 21}
    write_folder(folder, "csv", nodes=changes, edges={"source": ["n0", "n20"], "target": ["n1", "n3"]})
    assert main(["refresh", "--data", str(folder), *where]) == 0
    second = json.loads(capsys.readouterr().out)
    assert (second["version"], second["nodes"], second["live"]) == (2, 21, True)
    with Store(tmp_path / "models").model("pets").open() as snapshot:
        assert snapshot.node_ids is not None
        assert snapshot.node_ids.rows(["n20"]).tolist() == [20]
        assert snapshot.manifest.classes == ("blue", "red")
    write_folder(
        folder, "csv", nodes=changes | {"label": None, "depth": [1.0] * 21, "width": None}, edges={"target": ["n3"] * 3}
    )
    assert main(["refresh", "--data", str(folder), *where]) == 1
    message = "nodes.csv has no column 'width', which the model reads; it has id, height, depth"
    assert message in capsys.readouterr().err
    assert main(["refresh", "--data", str(folder), "--store", str(tmp_path / "none")]) == 1
    assert "the store has no model yet" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_a_report_is_one_page_without_other_files(task: Any) -> None:
    data = labelled(task)
    trained = train(config(data), data, TrainingConfig(epochs=4))
    summary = summarize(trained.model.config, trained.model.weights(), data.graph)
    page = render_report("a <b> report", data, trained, TrainingConfig(epochs=4), summary)
    assert "a &lt;b&gt; report" in page
    assert "Share of each branch in the decisions, all nodes" in page
    assert not re.findall(r"(?:src|href)=|<script|<link|@import|url\(", page)
    assert data.sha256() in page
    assert page.count("<svg") == (4 if task == "multiclass" else 2)
    assert ("Confusion matrix" in page) == (task == "multiclass")
    from html.parser import HTMLParser

    HTMLParser().feed(page)
