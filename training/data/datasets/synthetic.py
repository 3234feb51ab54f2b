"""A generated graph of any size, for tests of scale: communities, hubs, and features that hint at the community."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sgformer import Graph
from training.data.labelled import LabelledGraph
from training.data.splits import random_split

INSIDE = 0.7
"""Share of edges within a community."""
NOISE = 2.0
"""Standard deviation of a feature within a community. The means of the communities have a standard deviation of 1, so a node
is hard to classify without its neighbours."""


def generate(nodes: int, edges: int, features: int = 64, classes: int = 10, seed: int = 0) -> LabelledGraph:
    """Labels are communities. One end of an edge follows a power law, so that there are hubs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, nodes)
    means = rng.standard_normal((classes, features), dtype=np.float32)
    rows = rng.standard_normal((nodes, features), dtype=np.float32)
    rows *= NOISE
    rows += means[labels]
    left = (nodes * rng.random(edges) ** 3).astype(np.int64)
    right = rng.integers(0, nodes, edges)
    by_class = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[by_class], np.arange(classes + 1))
    inside = rng.random(edges) < INSIDE
    classes_inside = labels[left[inside]]
    sizes = starts[classes_inside + 1] - starts[classes_inside]
    right[inside] = by_class[starts[classes_inside] + (rng.random(len(sizes)) * sizes).astype(np.int64)]
    graph = Graph.build(rows, np.stack([left, right]))
    return LabelledGraph("synthetic", graph, labels, random_split(np.ones(nodes, dtype=bool), seed))


def load(_root: Path, _split: int, seed: int) -> LabelledGraph:
    return generate(20_000, 100_000, seed=seed)
