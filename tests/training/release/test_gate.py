"""A worse model never passes; the figures are what a naive computation gives; the comparison says whether it is fair."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store import LiveVersionChanged, Store
from sgformer import SGFormer
from tests.training.samples import config, labelled
from training import publish, refresh
from training.cli.events import EventWriter
from training.data.labelled import TEST, LabelledGraph
from training.fit.loop import TrainingConfig, train
from training.release.delivery import deliver
from training.release.gate import MARGIN, MOST_LUCK, Champion, Contestant, Verdict, compare, judge


def answers(labels: Any, right: Any, classes: int = 3) -> Any:
    """Logits that give each node its label where `right`, and another class elsewhere."""
    return np.eye(classes)[np.where(right, labels, (labels + 1) % classes)]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=90), st.integers(0, 2**32 - 1))
def test_paired_figures_are_those_of_the_textbook(pairs: list[tuple[bool, bool]], seed: int) -> None:
    """With a group per node, the jackknife of a mean is the standard error of the paired differences."""
    champion, challenger = np.array(pairs).T
    labels = np.random.default_rng(seed).integers(0, 3, len(pairs))
    found = compare("accuracy", answers(labels, champion), answers(labels, challenger), labels, "multiclass")
    gains = challenger.astype(float) - champion.astype(float)
    assert found.difference == pytest.approx(gains.mean())
    assert found.standard_error == pytest.approx(gains.std(ddof=1) / np.sqrt(len(gains)), abs=1e-9)
    assert (found.wins, found.losses) == ((gains > 0).sum(), (gains < 0).sum())
    if abs(gains.mean() - MARGIN * found.standard_error) > 1e-9:  # on the very edge, rounding decides
        assert found.better == (gains.mean() > MARGIN * found.standard_error and found.luck < MOST_LUCK)
    if (gains < 0).sum() >= (gains > 0).sum():
        assert not found.better


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


def publish_trained(store: Store, data: LabelledGraph, epochs: int, **options: Any) -> Contestant:
    trained = train(config(data), data, TrainingConfig(epochs=epochs))
    about = {"dataset": {"sha256": data.sha256()}, "training": {"split": data.drawn}}
    publish(trained.model, data.graph, store=store, name="demo", onnx=False, **about, **options)
    return Contestant(trained.model.config, trained.model.weights())


def shuffled(data: LabelledGraph) -> LabelledGraph:
    """The same graph with labels that mean nothing, except where models are compared."""
    mixed = np.random.default_rng(1).permutation(data.labels)
    return replace(data, labels=np.where(data.split == TEST, data.labels, mixed))


def test_a_better_challenger_passes_and_one_from_shuffled_labels_does_not(store: Store, data: LabelledGraph) -> None:
    weak = publish_trained(store, data, 1, activate=True)
    strong = publish_trained(store, data, 60)
    versions = store.model("demo")
    verdict = judge(strong, Champion.live(versions), data)
    assert verdict.better
    assert (verdict.fair, verdict.champion_version) == (True, 1)
    assert verdict.comparison is not None
    assert verdict.comparison.nodes == len(data.nodes(TEST))
    assert verdict.label_flips is not None
    assert verdict.label_flips > 0.2
    assert verdict.embedding_cosine is not None
    assert -1 <= verdict.embedding_cosine < 1
    versions.activate(2)
    worse = judge(publish_trained(store, shuffled(data), 20), Champion.live(versions), data)
    assert not worse.better
    assert worse.reason.startswith("not better than version 2: accuracy 0.")
    assert judge(strong, Champion.live(versions), data).label_flips == 0
    assert not judge(weak, Champion.live(versions), data).better


def test_what_cannot_be_compared_is_not_better(store: Store, data: LabelledGraph) -> None:
    champion_config = config(data)
    publish(SGFormer(champion_config).eval(), data.graph, store=store, name="demo", onnx=False, activate=True)
    champion = Champion.live(store.model("demo"))
    assert judge(Contestant(champion_config, {}), None, data).better, "there is nothing to be worse than"
    other = replace(champion_config, in_features=5)
    assert "it reads 6 features, the data has 5" in judge(Contestant(other, {}), champion, data).reason
    few = replace(data, split=np.where((data.split == TEST) & (np.arange(600) > 50), 1, data.split))
    told = judge(Contestant(champion_config, {}), champion, few).reason
    assert told == f"the data has {len(few.nodes(TEST))} test nodes to compare on, expected at least 20"


def test_a_class_that_is_new_counts_for_the_challenger(store: Store, data: LabelledGraph) -> None:
    two = replace(data, labels=np.where(data.labels == 2, -1, data.labels))
    publish_trained(store, two, 40, activate=True)
    challenger = publish_trained(store, data, 60)
    verdict = judge(challenger, Champion.live(store.model("demo")), data)
    assert verdict.better
    assert verdict.fair is False, "the champion's data had other labels and no rule for its split"


def test_a_version_that_went_live_meanwhile_is_compared_with_too(store: Store, data: LabelledGraph) -> None:
    publish_trained(store, data, 1, activate=True)
    publish_trained(store, data, 2)
    publish_trained(store, data, 3)
    versions = store.model("demo")
    seen: list[int] = []

    def judged(champion: Champion | None) -> Verdict:
        assert champion is not None
        seen.append(champion.version)
        if len(seen) == 1:
            versions.activate(2)  # somebody else does
        return Verdict(True, "so says the test", champion.version)

    assert deliver(versions, 3, "if_better", judged, EventWriter())["live"]
    assert seen == [1, 2]
    assert versions.live() == 3
    with pytest.raises(LiveVersionChanged):
        versions.activate(1, instead_of=2)


def test_a_store_that_cannot_be_pruned_does_not_fail_the_run(
    store: Store, data: LabelledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        publish_trained(store, data, seed)
    versions = store.model("demo")
    (versions.folder / "CURRENT").write_text("garbage")
    result = deliver(versions, 2, "never", lambda _: Verdict(False, "not needed"), EventWriter(), keep=1)
    assert (result, versions.versions()) == ({"live": False}, [1, 2])
    assert "old versions of demo are not removed: CURRENT: holds 'garbage'" in capsys.readouterr().err


def test_a_refresh_keeps_the_weights_and_is_no_worse(store: Store, data: LabelledGraph) -> None:
    contestant = publish_trained(store, data, 3, activate=True)
    refresh(store, "demo", data.graph, job="j1", onnx=False)
    versions = store.model("demo")
    assert versions.manifest(2).training["job"] == "j1"
    with versions.open(2) as refreshed:
        weights = dict(refreshed.weights)
    assert all(np.array_equal(weights[name], contestant.weights[name]) for name in contestant.weights)
    verdict = judge(Contestant(contestant.config, weights), Champion.live(versions), data)
    assert (verdict.better, verdict.label_flips) == (False, 0.0)


@pytest.mark.parametrize(
    ("wins", "losses", "better"), [(4, 0, False), (5, 0, False), (6, 0, True), (7, 1, False), (60, 30, True)]
)
def test_a_few_lucky_nodes_do_not_decide(wins: int, losses: int, better: bool) -> None:
    """A coin for each node on which the two differ: 4 to 0 is one in sixteen, whatever the standard error says."""
    labels = np.zeros(450, dtype=np.int64)
    champion, challenger = np.tile([1.0, 0.0], (450, 1)), np.tile([1.0, 0.0], (450, 1))
    champion[:wins] = [0.0, 1.0]
    challenger[wins : wins + losses] = [0.0, 1.0]
    found = compare("accuracy", champion, challenger, labels, "multiclass")
    assert (found.wins, found.losses) == (wins, losses)
    exact = sum(math.comb(wins + losses, k) for k in range(wins, wins + losses + 1)) / 2 ** (wins + losses)
    assert found.luck == pytest.approx(exact)
    assert found.better is better


@pytest.mark.parametrize(("wins", "better"), [(5, False), (6, True)])
def test_a_few_lucky_nodes_decide_of_no_multi_class_metric(wins: int, better: bool) -> None:
    labels = np.arange(450) % 3
    champion, challenger = answers(labels, np.arange(450) >= wins), answers(labels, np.ones(450, dtype=bool))
    found = compare("macro_f1", champion, challenger, labels, "multiclass")
    assert (found.wins, found.losses, found.luck) == (wins, 0, 0.5**wins)
    assert found.difference > MARGIN * found.standard_error
    assert found.better is better


def test_a_ranking_can_be_better_though_no_node_changes_its_class() -> None:
    rng = np.random.default_rng(0)
    labels = (np.arange(450) < 45).astype(np.int64)
    chance = 0.2 * labels + rng.uniform(0, 0.2, 450)  # never more than a half
    good, none = (np.log(np.stack([1 - one, one], axis=1)) for one in (chance + 0.01, rng.uniform(0.01, 0.4, 450)))
    found = compare("roc_auc", none, good, labels, "multiclass")
    assert (found.wins, found.losses, found.better) == (0, 0, True)


def test_where_no_version_was_live_none_may_have_come_meanwhile(store: Store, data: LabelledGraph) -> None:
    for seed in (1, 2):
        publish_trained(store, data, seed)
    versions = store.model("demo")
    versions.activate(1, instead_of=None)
    with pytest.raises(LiveVersionChanged):
        versions.activate(2, instead_of=None)
    assert versions.live() == 1
