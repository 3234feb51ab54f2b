"""The gate refuses worse versions, computes its statistics correctly, and states whether the comparison is fair."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store import LiveVersionChanged, Snapshot, Store
from sgformer import Graph
from tests.training.samples import config, labelled
from training import publish, refresh
from training.cli.events import EventWriter
from training.data.labelled import TEST, TRAIN, UNUSED, LabelledGraph
from training.fit.loop import TrainingConfig, train
from training.release.delivery import deliver
from training.release.gate import MARGIN, MAX_P_VALUE, Verdict, compare, judge


def answers(labels: Any, right: Any, classes: int = 3) -> Any:
    """Logits of the right class for the nodes in `right`, and of another class for the others."""
    return np.eye(classes)[np.where(right, labels, (labels + 1) % classes)]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=90), st.integers(0, 2**32 - 1))
def test_the_standard_error_is_that_of_paired_differences(pairs: list[tuple[bool, bool]], seed: int) -> None:
    """With a group per node, the jackknife of a mean equals the textbook formula."""
    live, new = np.array(pairs).T
    labels = np.random.default_rng(seed).integers(0, 3, len(pairs))
    comparison = compare("accuracy", answers(labels, live), answers(labels, new), labels, "multiclass")
    gains = new.astype(float) - live.astype(float)
    assert comparison.difference == pytest.approx(gains.mean())
    assert comparison.standard_error == pytest.approx(gains.std(ddof=1) / np.sqrt(len(gains)), abs=1e-9)
    assert (comparison.wins, comparison.losses) == ((gains > 0).sum(), (gains < 0).sum())
    if abs(gains.mean() - MARGIN * comparison.standard_error) > 1e-9:  # at the limit, rounding decides
        assert comparison.better == (gains.mean() > MARGIN * comparison.standard_error and comparison.p_value < MAX_P_VALUE)
    if (gains < 0).sum() >= (gains > 0).sum():
        assert not comparison.better


@pytest.mark.parametrize(
    ("task", "metric"), [("multiclass", "macro_f1"), ("multilabel", "roc_auc"), ("regression", "r2"), ("regression", "mae")]
)
def test_a_model_with_added_noise_never_passes(task: Any, metric: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):  # each is a hundred rankings or more
        if task == "multiclass":
            labels = rng.integers(0, 3, 200)
            good = np.eye(3)[labels] * 2
        else:
            labels = rng.integers(0, 2, (200, 2)).astype(np.float32)
            good = labels * 4 - 2
        good = good + rng.normal(size=good.shape)
        bad = good + 3 * rng.normal(size=good.shape)
        assert not compare(metric, good, bad, labels, task).better
        assert not compare(metric, good, good, labels, task).better
        assert compare(metric, bad, good, labels, task).better


@pytest.fixture(scope="module")
def data() -> LabelledGraph:
    return labelled(nodes=600)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def publish_trained(store: Store, data: LabelledGraph, epochs: int, **options: Any) -> Snapshot:
    """Publishes a new version over `data`, and returns it opened."""
    trained = train(config(data), data, TrainingConfig(epochs=epochs))
    about = {"dataset": {"sha256": data.sha256()}, "training": {"split": data.drawn}}
    version = publish(trained.model, data.graph, store=store, name="demo", onnx=False, **about, **options)
    return store.model("demo").open(version)


def shuffled(data: LabelledGraph) -> LabelledGraph:
    """The same data with shuffled labels, except for the test nodes."""
    mixed = np.random.default_rng(1).permutation(data.labels)
    return replace(data, labels=np.where(data.split == TEST, data.labels, mixed))


def test_a_better_version_passes_and_one_trained_on_shuffled_labels_does_not(store: Store, data: LabelledGraph) -> None:
    weak = publish_trained(store, data, 1, activate=True)
    strong = publish_trained(store, data, 60)
    versions = store.model("demo")
    verdict = judge(strong, weak, data)
    assert verdict.better
    assert (verdict.fair, verdict.live_version) == (True, 1)
    assert verdict.comparison is not None
    assert verdict.comparison.nodes == len(data.nodes(TEST))
    assert verdict.label_flips is not None
    assert verdict.label_flips > 0.2
    assert verdict.embedding_cosine is not None
    assert -1 <= verdict.embedding_cosine < 1
    versions.activate(2)
    worse = judge(publish_trained(store, shuffled(data), 20), versions.open(), data)
    assert not worse.better
    assert worse.reason.startswith("not better than version 2: accuracy 0.")
    assert judge(strong, versions.open(), data).label_flips == 0
    assert not judge(weak, versions.open(), data).better


def test_versions_that_cannot_be_compared_are_not_better(store: Store, data: LabelledGraph) -> None:
    live = publish_trained(store, data, 1, activate=True)
    assert judge(live, None, data).better, "there is no version to be worse than"
    narrow = replace(data, graph=Graph(np.asarray(data.graph.features)[:, :5], data.graph.adjacency))
    assert "it reads 6 features, the data has 5" in judge(publish_trained(store, narrow, 1), live, narrow).reason
    few = replace(data, split=np.where((data.split == TEST) & (np.arange(600) > 50), 1, data.split))
    reason = judge(live, live, few).reason
    assert reason == f"the data has {len(few.nodes(TEST))} test nodes to compare on, expected at least 20"


def test_stored_answers_equal_those_of_a_full_forward(store: Store, data: LabelledGraph) -> None:
    """A live version over the same data answers from its snapshot; over other data by a full forward in scratch files."""
    live = publish_trained(store, data, 1, activate=True)
    new = publish_trained(store, data, 5)
    stored = judge(new, live, data)
    other = replace(data, split=np.where(data.split == TRAIN, UNUSED, data.split))
    computed = judge(new, live, other)
    assert other.sha256() != data.sha256()
    assert stored.comparison == computed.comparison
    assert stored.embedding_cosine == pytest.approx(computed.embedding_cosine, abs=1e-6)
    assert [path.name for path in store.model("demo").folder.iterdir() if path.name.startswith("tmp")] == []


def test_a_new_class_counts_for_the_new_version(store: Store, data: LabelledGraph) -> None:
    two = replace(data, labels=np.where(data.labels == 2, -1, data.labels))
    live = publish_trained(store, two, 40, activate=True)
    verdict = judge(publish_trained(store, data, 60), live, data)
    assert verdict.better
    assert verdict.fair is False, "the live version has other labels, and its split has no rule"


def test_a_version_that_goes_live_during_the_comparison_is_compared_with_too(store: Store, data: LabelledGraph) -> None:
    publish_trained(store, data, 1, activate=True)
    publish_trained(store, data, 2)
    publish_trained(store, data, 3)
    versions = store.model("demo")
    seen: list[int] = []

    def activate_another(live: Snapshot | None) -> Verdict:
        assert live is not None
        seen.append(int(live.folder.name))
        if len(seen) == 1:
            versions.activate(2)  # as another process would
        return Verdict(True, "so says the test", seen[-1])

    assert deliver(versions, 3, "if_better", activate_another, EventWriter())["live"]
    assert seen == [1, 2]
    assert versions.live() == 3
    with pytest.raises(LiveVersionChanged):
        versions.activate(1, expected_live=2)


def test_a_store_that_cannot_be_pruned_does_not_fail_the_run(
    store: Store, data: LabelledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        publish_trained(store, data, seed)
    versions = store.model("demo")
    (versions.folder / "CURRENT").write_text("garbage")
    result = deliver(versions, 2, "never", lambda _: Verdict(False, "not needed"), EventWriter(), keep=1)
    assert (result, versions.versions()) == ({"live": False}, [1, 2])
    assert "could not remove old versions of demo: CURRENT: holds 'garbage'" in capsys.readouterr().err


def test_a_refresh_keeps_the_weights(store: Store, data: LabelledGraph) -> None:
    live = publish_trained(store, data, 3, activate=True)
    refresh(store, "demo", data.graph, job="j1", onnx=False)
    versions = store.model("demo")
    assert versions.manifest(2).training["job"] == "j1"
    refreshed = versions.open(2)
    assert all(np.array_equal(refreshed.weights[name], live.weights[name]) for name in live.weights)
    verdict = judge(refreshed, live, data)
    assert (verdict.better, verdict.label_flips) == (False, 0.0)


@pytest.mark.parametrize(
    ("wins", "losses", "better"), [(4, 0, False), (5, 0, False), (6, 0, True), (7, 1, False), (60, 30, True)]
)
def test_few_differing_nodes_need_a_low_p_value(wins: int, losses: int, better: bool) -> None:
    """Four wins and no loss have a p-value of 1/16, however small the standard error is."""
    labels = np.zeros(450, dtype=np.int64)
    live, new = np.tile([1.0, 0.0], (450, 1)), np.tile([1.0, 0.0], (450, 1))
    live[:wins] = [0.0, 1.0]
    new[wins : wins + losses] = [0.0, 1.0]
    comparison = compare("accuracy", live, new, labels, "multiclass")
    assert (comparison.wins, comparison.losses) == (wins, losses)
    exact = sum(math.comb(wins + losses, k) for k in range(wins, wins + losses + 1)) / 2 ** (wins + losses)
    assert comparison.p_value == pytest.approx(exact)
    assert comparison.better is better


@pytest.mark.parametrize(("wins", "better"), [(5, False), (6, True)])
def test_the_p_value_counts_for_every_multi_class_metric_of_classes(wins: int, better: bool) -> None:
    labels = np.arange(450) % 3
    live, new = answers(labels, np.arange(450) >= wins), answers(labels, np.ones(450, dtype=bool))
    comparison = compare("macro_f1", live, new, labels, "multiclass")
    assert (comparison.wins, comparison.losses, comparison.p_value) == (wins, 0, 0.5**wins)
    assert comparison.difference > MARGIN * comparison.standard_error
    assert comparison.better is better


def test_a_ranking_can_be_better_although_no_node_changes_its_class() -> None:
    rng = np.random.default_rng(0)
    labels = (np.arange(450) < 45).astype(np.int64)
    probability = 0.2 * labels + rng.uniform(0, 0.2, 450)  # always below a half
    pair = (probability + 0.01, rng.uniform(0.01, 0.4, 450))
    good, random = (np.log(np.stack([1 - second, second], axis=1)) for second in pair)
    comparison = compare("roc_auc", random, good, labels, "multiclass")
    assert (comparison.wins, comparison.losses, comparison.better) == (0, 0, True)


def test_activation_that_expects_no_live_version_fails_if_one_is_live(store: Store, data: LabelledGraph) -> None:
    for seed in (1, 2):
        publish_trained(store, data, seed)
    versions = store.model("demo")
    versions.activate(1, expected_live=None)
    with pytest.raises(LiveVersionChanged):
        versions.activate(2, expected_live=None)
    assert versions.live() == 1
