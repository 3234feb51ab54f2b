"""The facts about small graphs, and every finding."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from sgformer import Graph
from tests.training.samples import labelled, write_folder
from training.cli.facts_text import facts_text
from training.data.facts.columns import column_facts
from training.data.facts.data_facts import DataFacts
from training.data.facts.findings import Finding, findings
from training.data.facts.leaks import find_leaks
from training.data.facts.structure import Homophily, StructureFacts
from training.data.labelled import LabelledGraph
from training.data.tables.reading import Reading
from training.data.user_data import read_user_data

RNG = np.random.default_rng(1)
LABELS = np.arange(200) % 2
RING = np.stack([np.arange(200), (np.arange(200) + 2) % 200])
BOTH = np.concatenate([RING, RING[::-1]], axis=1)


def data(features: Any = None, edges: Any = BOTH, labels: Any = LABELS, **changes: Any) -> LabelledGraph:
    """200 nodes in two rings, one per class."""
    features = np.random.default_rng(0).normal(size=(200, 2)) if features is None else features
    split = changes.pop("split", (np.arange(200) // 2) % 3)
    return LabelledGraph("rings", Graph.build(features, edges), labels, split.astype(np.int8), **changes)


def codes(graph: LabelledGraph, scaling: Any = "none") -> list[str]:
    return [finding.code for finding in findings(DataFacts.of(graph, scaling))]


def finding_of(graph: LabelledGraph, code: str) -> Finding:
    return next(finding for finding in findings(DataFacts.of(graph, "none")) if finding.code == code)


def test_the_structure_counts_edges_components_and_isolated_nodes() -> None:
    graph = Graph.build(np.ones((7, 1)), [[0, 1, 1, 2, 3, 3], [1, 0, 2, 2, 4, 4]])
    facts = StructureFacts.of(graph.adjacency)
    assert (facts.nodes, facts.edges, facts.isolated, facts.largest_degree) == (7, 3, 2, 2)
    assert (facts.components, facts.largest_component) == (4, 3)
    assert facts.given is not None
    assert (facts.given.entries, facts.given.one_way, facts.given.repeated, facts.given.self_loops) == (6, 2, 1, 1)


def test_homophily_by_hand_and_by_its_definition() -> None:
    graph = Graph.build(np.ones((5, 1)), [[0, 1, 2, 3], [1, 2, 3, 4]])
    found = Homophily.of(graph.adjacency, np.array([0, 0, 1, 1, -1]))
    assert found is not None
    # Three labelled edges, two within a class; each class has half of the six ends.
    assert (found.edges, found.same_class) == (3, pytest.approx(2 / 3))
    assert found.adjusted == pytest.approx((2 / 3 - 0.5) / (1 - 0.5))
    assert Homophily.of(graph.adjacency, np.full(5, -1)) is None
    assert Homophily.of(graph.adjacency, np.zeros(5, dtype=int)) is None


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_have_types_ranges_and_scales(sparse: bool) -> None:
    columns = np.stack([np.zeros(50), np.arange(50) % 2, np.arange(50) % 7 - 3, RNG.normal(size=50)], axis=1)
    graph = Graph.build(scipy.sparse.csr_matrix(columns) if sparse else columns, np.empty((2, 0), dtype=int))
    found = column_facts(graph.features, None, None)
    assert [(column.name, column.kind) for column in found] == [
        ("0", "constant"),
        ("1", "0/1"),
        ("2", "whole number"),
        ("3", "number"),
    ]
    np.testing.assert_allclose([column.low for column in found], columns.min(axis=0), rtol=1e-6)
    np.testing.assert_allclose([column.high for column in found], columns.max(axis=0), rtol=1e-6)
    np.testing.assert_allclose([column.scale for column in found[1:]], columns.std(axis=0)[1:], rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_column_that_determines_the_label_is_found(sparse: bool) -> None:
    labels = np.arange(3000) % 3
    labels[:100] = -1
    noise = RNG.normal(size=(3000, 5))
    code = np.array([7, 3, 5])[labels]
    detailed = 3 * RNG.integers(0, 100, 3000) + labels  # 300 values, each of one class
    above = 10.0 * labels + RNG.random(3000)
    nearly = labels.copy()
    nearly[2999] = 0 if nearly[2999] else 1
    marks = (labels == 1).astype(float)
    matrix: Any = np.column_stack([noise, code, detailed, above, nearly, marks, np.arange(3000)])
    assert find_leaks(scipy.sparse.csr_matrix(matrix) if sparse else matrix, labels) == [5, 6, 7, 9]


def test_a_column_of_a_small_graph_does_not_determine_the_label_by_chance() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert find_leaks(rng.normal(size=(12, 500)), rng.integers(0, 2, 12)) == []


def test_values_and_several_labels_are_found_in_columns() -> None:
    values = RNG.normal(size=400)
    matrix = np.column_stack([RNG.normal(size=(400, 2)), 3 - 2 * values, values + RNG.normal(size=400)])
    assert find_leaks(matrix, np.where(np.arange(400) < 9, np.nan, values)) == [2]
    several = (RNG.random((400, 2)) < 0.5).astype(float)
    several[::5] = np.nan
    assert find_leaks(np.column_stack([matrix, np.nan_to_num(several[:, 1])]), several) == [4]


def test_sound_data_has_no_findings() -> None:
    assert codes(data()) == []
    chance = ["directed_edges", "repeated_edges"]  # the generator draws pairs
    assert codes(labelled("multilabel")) == codes(labelled("regression")) == chance


MOST = np.where(np.arange(200) < 196, LABELS, 2)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"edges": BOTH[:, :250]},
            "directed_edges",
            "150 of 200 edges are given in one direction only; all edges are read as undirected",
        ),
        (
            {"edges": np.concatenate([BOTH, BOTH[:, :3]], axis=1)},
            "repeated_edges",
            "3 entries of the edge list repeat another; each edge counts once",
        ),
        ({"edges": BOTH[:, :10]}, "isolated_nodes", "188 of 200 nodes (94%) have no edges"),
        (
            {"features": np.stack([np.arange(200), RNG.random(200)], axis=1)},
            "index_column",
            "the rows of the table are numbered in feature 0",
        ),
        (
            {"features": RNG.random((200, 2)), "feature_names": ("age", "Unnamed: 0")},
            "index_column",
            "the rows of the table are numbered in feature Unnamed: 0",
        ),
        (
            {"features": np.stack([RNG.permutation(200) * 3, RNG.random(200)], axis=1)},
            "id_column",
            "ids are in feature 0",
        ),
        (
            {"features": RNG.integers(0, 9, (200, 2)), "feature_names": ("shop_id", "age")},
            "id_column",
            "ids are in feature shop_id",
        ),
        (
            {"features": np.stack([RNG.random(200), LABELS + 5], axis=1), "feature_names": ("age", "outcome")},
            "label_column",
            "the label is determined by feature outcome",
        ),
        (
            {"features": np.hstack([np.ones((200, 8)), RNG.random((200, 1))])},
            "constant_columns",
            "one value for all nodes in features 0, 1, 2, 3, 4, 5 and 2 more",
        ),
        (
            {"features": np.stack([np.linspace(0, 5000, 200)[::-1], np.linspace(0, 1, 200)], axis=1)},
            "uneven_scales",
            "feature 0 ranges from 0 to 5000, feature 1 from 0 to 1",
        ),
        (
            {"split": np.where(LABELS == 1, 1, (np.arange(200) // 2) % 3)},
            "untrained_class",
            "no training node has class 1: the model cannot learn it",
        ),
        ({"labels": MOST, "class_names": ("a", "b", "rare")}, "small_class", "fewer than 5 training nodes have class rare"),
        ({"class_names": ("a", "b", "c", "d")}, "unused_class", "no node has classes c, d"),
        ({"labels": np.arange(200) // 2}, "many_classes", "200 labelled nodes have 100 classes"),
        ({"split": np.where(np.arange(200) < 7, 2, np.arange(200) // 2 % 2)}, "few_test_nodes", "7 test nodes"),
        (
            {"labels": np.arange(200) // 2 % 2},
            "low_homophily",
            "neighbours share a class hardly more often than by chance (adjusted homophily -1.00)",
        ),
    ],
)
def test_every_finding_says_what_was_found_and_what_to_do(changes: dict[str, Any], code: str, text: str) -> None:
    finding = finding_of(data(**changes), code)
    assert finding.text == text
    assert len(finding.advice) > 20


def test_scaling_makes_the_finding_about_scales_pointless() -> None:
    graph = data(np.stack([np.linspace(0, 5000, 200)[::-1], np.linspace(0, 1, 200)], axis=1))
    assert "uneven_scales" in codes(graph, "none")
    assert "uneven_scales" not in codes(graph, "standard")


def test_the_json_has_the_same_keys_for_every_task_and_without_labels() -> None:
    all_keys = []
    for graph in (labelled(), labelled("multilabel"), labelled("regression")):
        content = json.loads(json.dumps(DataFacts.of(graph, "none").to_json()))
        all_keys.append((set(content), set(content["labels"]), set(content["features"])))
    assert all_keys[0] == all_keys[1] == all_keys[2]
    structure = {"nodes", "edges", "given", "isolated", "components", "largest_component", "largest_degree"}
    assert all_keys[0][0] == {"name", "features", "labels", "scaling", "scaling_reason"} | structure
    assert all_keys[0][1] == {"task", "metric", "labelled", "parts", "drawn", "classes", "homophily"}
    assert all_keys[0][2] == {"count", "named", "sparse", "non_zero", "empty_rows", "kinds", "columns"}
    unlabelled = DataFacts.of_graph("plain", labelled().graph).to_json()
    assert unlabelled["labels"] is unlabelled["scaling"] is None
    assert set(unlabelled) == all_keys[0][0]


def test_wide_data_is_summarised() -> None:
    wide = replace(labelled(), graph=Graph.build(RNG.random((300, 500)), labelled().graph.adjacency.edge_index()))
    features = DataFacts.of(wide, "none").to_json()["features"]
    assert (features["count"], features["kinds"], features["columns"]) == (500, {"number": 500}, [])


def test_columns_of_a_table_are_listed_by_name(tmp_path: Path) -> None:
    days = [f"2024-01-{day + 1:02}" for day in range(20)]
    changes = {"genre": ["jazz", "rock", "soul", "jazz"] * 5, "since": days, "width": None}
    table = read_user_data(write_folder(tmp_path / "a", "csv", nodes=changes), reading=Reading(dates="days"))
    columns = {column.name: column for column in DataFacts.of(table, "standard").features.columns}
    assert {name: column.kind for name, column in columns.items()} == {
        "height": "number",
        "genre": "category",
        "since": "date",
    }
    assert columns["genre"].categories == 3
    assert columns["since"].high - columns["since"].low == 19


def test_a_quantity_whose_values_happen_to_differ_is_not_an_id() -> None:
    amounts = np.random.default_rng(3).choice(10**6, 200, replace=False)
    assert "id_column" not in codes(data(np.stack([amounts, RNG.random(200)], axis=1)))
    assert "id_column" in codes(data(np.stack([RNG.permutation(200) + 10**5, RNG.random(200)], axis=1)))


def test_the_text_has_whole_numbers_in_full_and_counts_agree_with_their_nouns() -> None:
    sizes = 1_414_000 + np.arange(200.0)[:, None] ** 2
    edges = np.concatenate([BOTH, [[5, 5], [5, 7]]], axis=1)
    text = facts_text(DataFacts.of(data(sizes, edges)), [])
    assert re.search(r"whole number +1414000 +1453601\n", text)
    assert "1 repeat dropped, 1 self-loop dropped" in " ".join(text.split())
