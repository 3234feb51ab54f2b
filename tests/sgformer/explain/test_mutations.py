"""The checks of explanations must detect every known kind of mistake: there is a mutant for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sgformer.explain import branches, subject
from sgformer.explain.subject import Subject
from sgformer.live.changes import Draft
from sgformer.request_time.layers import LayerNorm
from sgformer.sums import AttentionSums
from tests.sgformer.cases import Case, cases
from tests.sgformer.explain.checks import check_known, check_new, check_split

Mutant = Callable[[pytest.MonkeyPatch], None]
SETTINGS = settings(
    max_examples=400, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False, deadline=None
)
NOTHING = np.empty(0, dtype=np.int64)


def count_the_node_among_the_others(patch: pytest.MonkeyPatch) -> None:
    def parts(self: AttentionSums, query: Any, _key: Any, value: Any) -> Any:
        others = self.attend(query, 0 * value)
        return self.attend(query, value.copy()) - others, others

    patch.setattr(AttentionSums, "attend_parts", parts)


def give_the_residual_to_the_others(patch: pytest.MonkeyPatch) -> None:
    original = AttentionSums.attend_parts
    patch.setattr(AttentionSums, "attend_parts", lambda *args: original(*args)[::-1])


def normalise_every_part_by_its_own_deviation(patch: pytest.MonkeyPatch) -> None:
    original = LayerNorm.scaled
    patch.setattr(LayerNorm, "scaled", lambda self, part, _rows: original(self, part, part))


def split_the_bias_of_the_norm_off_twice(patch: pytest.MonkeyPatch) -> None:
    original = LayerNorm.scaled
    patch.setattr(LayerNorm, "scaled", lambda self, part, rows: original(self, part, rows) + self.bias)


def ignore_the_share_of_the_graph(patch: pytest.MonkeyPatch) -> None:
    original = branches.split_logits
    mutant = lambda *args: (lambda parts: parts._replace(graph=parts.graph * 0.5))(original(*args))  # noqa: E731
    patch.setattr(branches, "split_logits", mutant)
    patch.setattr(subject, "split_logits", mutant)


def split_with_the_sums_without_the_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttentionSums, "with_rows", lambda self, *_: self)


def leave_the_node_in_the_graph(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Draft, "remove_node", lambda *_: None)


def leave_its_links_in_the_graph(patch: pytest.MonkeyPatch) -> None:
    original = Draft.changes
    patch.setattr(Draft, "changes", lambda self: replace(original(self), removed=NOTHING))


def keep_the_link(patch: pytest.MonkeyPatch) -> None:
    original = Subject.logits
    patch.setattr(Subject, "logits", lambda self, links, rows=None: original(self, [links[0]] * len(links), rows))


def keep_the_feature(patch: pytest.MonkeyPatch) -> None:
    original = Subject.logits
    patch.setattr(Subject, "logits", lambda self, links, _rows=None: original(self, links))


def freeze_the_neighbours(patch: pytest.MonkeyPatch) -> None:
    from sgformer.live.changing_graph import ChangingGraph

    original = ChangingGraph.extended
    patch.setattr(ChangingGraph, "extended", lambda self, new, **_: original(self, new, "frozen"))


MUTANTS: list[Mutant] = [
    count_the_node_among_the_others,
    give_the_residual_to_the_others,
    normalise_every_part_by_its_own_deviation,
    split_the_bias_of_the_norm_off_twice,
    ignore_the_share_of_the_graph,
    split_with_the_sums_without_the_node,
    leave_the_node_in_the_graph,
    leave_its_links_in_the_graph,
    keep_the_link,
    keep_the_feature,
    freeze_the_neighbours,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_checks_catch(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)

    @given(cases(), st.integers(0, 1000))
    @SETTINGS
    def run(case: Case, node: int) -> None:
        check_split(case)
        check_known(case, node % case.graph.num_nodes)
        check_new(case)

    with np.errstate(all="ignore"), pytest.raises((AssertionError, IndexError)):
        run()
