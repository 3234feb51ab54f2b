"""Publishing a trained model, and refreshing a version over a graph that has grown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_store import DataError, Store
from sgformer import NewNodes, SGFormer, summarize
from tests.training.samples import config, labelled, write_folder
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
    publish(pyg_model, graph, store=store, name="pyg", onnx=False, activate=True)
    with torch.no_grad():
        expected = pyg_model(graph.x, graph.edge_index, torch.zeros(300, dtype=torch.long)).exp().numpy()
    with store.model("pyg").open() as snapshot:
        logits = snapshot.known(np.arange(300)).logits
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    with pytest.raises(DataError, match="cannot publish a SimpleNamespace, expected an SGFormer"):
        publish(SimpleNamespace(), graph, store=store, name="pyg")


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
    assert "the model was trained on the features height, width; the new data has height, depth" in capsys.readouterr().err
    assert main(["refresh", "--data", str(folder), "--store", str(tmp_path / "none")]) == 1
    assert "say which model with --model: the store has none" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_a_report_is_one_page_without_other_files(task: Any) -> None:
    data = labelled(task)
    trained = train(config(data), data, TrainingConfig(epochs=4))
    summary = summarize(trained.model.config, trained.model.weights(), data.graph)
    page = render_report("a <b> report", data, trained, TrainingConfig(epochs=4), summary)
    assert "a &lt;b&gt; report" in page
    assert not re.findall(r"(?:src|href)=|<script|<link|@import|url\(", page)
    assert data.sha256() in page
    assert page.count("<svg") == (4 if task == "multiclass" else 2)
    assert ("Confusion matrix" in page) == (task == "multiclass")
    from html.parser import HTMLParser

    HTMLParser().feed(page)
