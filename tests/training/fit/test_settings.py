"""Defaults: the scaling that follows from the features, early stopping, and recipes that keep their results."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from model_store.run_settings import recipe_names
from sgformer import ConfigError, Graph
from tests.training.samples import labelled
from training.fit.feature_scaling import choose_scaling
from training.fit.loop import train
from training.fit.search_space import SPACE, free_settings
from training.fit.settings import (
    DEFAULTS,
    TABLE_DEFAULTS,
    TRAINING_SETTINGS,
    configurations,
    describe_defaults,
    feature_scaling,
    read_recipe,
    with_gnn_norm,
)

RNG = np.random.default_rng(0)
WORDS = (RNG.random((500, 64)) < 0.05).astype(np.float32)
COUNTS = WORDS * RNG.integers(1, 60, WORDS.shape)


@pytest.mark.parametrize(
    ("features", "transform"),
    [
        (WORDS, "none"),
        (COUNTS, "none"),
        (WORDS * RNG.random(WORDS.shape), "none"),
        (RNG.normal(size=(500, 64)), "standard"),
        (RNG.normal(size=(500, 3)) * [1, 100, 10_000], "standard"),
        (RNG.integers(0, 17, (500, 64)), "standard"),
        (np.column_stack([WORDS, RNG.integers(18, 90, 500)]), "standard"),
        (np.column_stack([COUNTS, np.full(500, 3)]), "none"),
        (np.eye(7)[RNG.integers(0, 7, 500)], "none"),
        (np.zeros((500, 4)), "none"),
    ],
    ids=[
        "words",
        "counts",
        "weights",
        "numbers",
        "ranges",
        "pixels",
        "words and an age",
        "words and a constant",
        "one category",
        "nothing",
    ],
)
@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_the_scaling_follows_from_what_the_features_are(features: Any, transform: str, form: Any) -> None:
    choice = choose_scaling(Graph.build(form(features), np.zeros((2, 0), dtype=np.int64)).features)
    assert choice.transform == transform
    assert str(choice).startswith(f"{transform} (auto: ")


@pytest.mark.parametrize(
    ("features", "table"),
    [
        (RNG.normal(size=(500, 3)), True),
        (RNG.integers(0, 17, (500, 64)), True),
        (np.eye(7)[RNG.integers(0, 7, 500)], True),
        (WORDS, False),
        (COUNTS, False),
    ],
    ids=["numbers", "pixels", "one category", "words", "counts"],
)
def test_a_table_has_other_defaults_than_words(features: Any, table: bool) -> None:
    graph = Graph.build(features, np.zeros((2, 0), dtype=np.int64))
    data = replace(labelled(nodes=500), graph=graph)
    config, _ = configurations(data, {"gnn_dropout": 0.1})
    expected = DEFAULTS | (TABLE_DEFAULTS if table else {})
    assert (config.gnn_batch_norm, config.attention_dropout) == (expected["gnn_batch_norm"], expected["attention_dropout"])
    assert config.gnn_dropout == 0.1
    kind, norm, dropout = ("a table", "true", 0.3) if table else ("words", "false", 0.5)
    assert describe_defaults(data, {"gnn_dropout": 0.1}) == f"for {kind}: gnn_batch_norm {norm}, attention_dropout {dropout}"
    assert describe_defaults(data, read_recipe("cora").settings) is None


@pytest.mark.parametrize(
    ("features", "degree", "dense"), [(WORDS, 30, True), (WORDS, 28, False), (RNG.normal(size=(500, 3)), 30, False)]
)
def test_words_in_a_dense_graph_have_other_defaults(features: Any, degree: int, dense: bool) -> None:
    steps = np.arange(1, degree // 2 + 1)[:, None]
    edges = np.stack(np.broadcast_arrays(np.arange(500), (np.arange(500) + steps) % 500)).reshape(2, -1)
    data = replace(labelled(nodes=500), graph=Graph.build(features, edges))
    config, _ = configurations(data, {})
    assert (config.gnn_layer_residual, config.gnn_plain_last) == (dense, not dense)
    assert ("dense" in (describe_defaults(data, {}) or "")) == dense
    if dense:
        expected = "for words in a dense graph: gnn_batch_norm true, gnn_layer_residual true, gnn_plain_last false"
        assert describe_defaults(data, {"attention_dropout": 0, "gnn_dropout": 0}) == expected
    for settings in (
        {"gnn_norm": "none"},
        {"gnn_plain_last": True},
        {"gnn_layer_residual": False},
    ):  # together, or not at all
        config, _ = configurations(data, settings)
        assert (config.gnn_layer_residual, config.gnn_plain_last) == (False, True)
        assert "dense" not in (describe_defaults(data, settings) or "")


@pytest.mark.parametrize(
    ("norm", "switches"), [("none", (False, False)), ("batch", (True, False)), ("layer", (False, True))]
)
def test_a_norm_by_name_overrides_the_switches_of_a_recipe(norm: str, switches: tuple[bool, bool]) -> None:
    for settings in ({}, {"gnn_batch_norm": True}, {"gnn_batch_norm": False}, read_recipe("digits").settings):
        config, _ = configurations(labelled(), settings | {"gnn_norm": norm})
        assert (config.gnn_batch_norm, config.gnn_layer_norm) == switches
        assert "gnn_batch_norm" not in (describe_defaults(labelled(), settings | {"gnn_norm": norm}) or "")


def test_label_smoothing_is_for_classes_and_less_than_one() -> None:
    with pytest.raises(ConfigError, match="label_smoothing is for one class per node, and the task is regression"):
        configurations(labelled("regression"), {"label_smoothing": 0.1})
    with pytest.raises(ConfigError, match=r"label_smoothing must lie in \[0, 1\), got 1"):
        configurations(labelled(), {"label_smoothing": 1})
    assert configurations(labelled(), {"label_smoothing": 0.1})[1].label_smoothing == 0.1


@pytest.mark.parametrize(("task", "searched"), [("multiclass", True), ("multilabel", False), ("regression", False)])
def test_a_search_has_the_settings_that_the_task_has(task: Any, searched: bool) -> None:
    assert ("label_smoothing" in free_settings({}, task)) == searched
    assert "gnn_norm" not in free_settings({"gnn_batch_norm": True}, task)


def test_a_recipe_depends_on_no_default() -> None:
    """So that another default leaves its results as they are."""
    needed = {*DEFAULTS, *TRAINING_SETTINGS} - {"seed", "batch_nodes"}
    assert {name: needed - set(read_recipe(name).settings) for name in recipe_names()} == {
        name: set() for name in recipe_names()
    }


def test_a_training_without_settings_stops_early_and_scales_its_features() -> None:
    data = labelled()
    config, training = configurations(data, {})
    assert config.feature_transform == feature_scaling(data, {}).transform == "standard"
    trained = train(config, data, training)
    assert training.patience is not None
    assert len(trained.history) == trained.best.number + training.patience < training.epochs


def test_a_setting_overrides_the_choice() -> None:
    data = labelled()
    assert configurations(data, {"feature_transform": "row"})[0].feature_transform == "row"
    assert str(feature_scaling(data, {"feature_transform": "none"})) == "none (as set)"
    assert configurations(data, {"feature_transform": "auto"})[0].feature_transform == "standard"


@pytest.mark.parametrize("features", [WORDS, COUNTS, RNG.normal(size=(500, 3))])
def test_a_search_can_begin_with_the_defaults(features: Any) -> None:
    data = replace(labelled(nodes=500), graph=Graph.build(features, np.zeros((2, 0), dtype=np.int64)))
    config, training = configurations(data, {})
    settings = with_gnn_norm(asdict(config)) | asdict(training)
    assert {name: settings[name] for name, choices in SPACE.items() if settings[name] not in choices} == {}
