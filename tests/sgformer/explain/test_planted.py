"""On a graph whose labels are decided by three known links, explanations name these links."""

from __future__ import annotations

import numpy as np

from benchmarks.groups.explanations import measure, our_explainer
from benchmarks.planted import Planted


def test_explanations_name_the_links_that_decide_the_label() -> None:
    planted = Planted.make(cases=60)
    model = planted.train()
    share, _ = measure(planted, our_explainer(planted, model))
    assert share >= 0.95
    others = Planted(planted.graph, planted.labels, planted.cases, np.roll(planted.decisive, 1, axis=0))
    assert measure(others, our_explainer(planted, model))[0] <= 0.05  # the links of another case are not named
