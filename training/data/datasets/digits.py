"""The demo data: the 1,797 handwritten digits of scikit-learn as a nearest-neighbour graph.

A drawn digit is a new node: its pixels are the features, and the most similar stored digits are its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from sgformer import Graph
from training.data.labelled import TEST, LabelledGraph
from training.data.splits import random_split

NEIGHBORS = 8
CLASS_NAMES = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Drawing:
    """A digit that is not in the graph."""

    pixels: NDArray[np.float32]
    label: int
    neighbors: NDArray[np.int64]

    def __str__(self) -> str:
        shades = " .:-=+*#%@"
        levels = np.minimum(self.pixels.reshape(8, 8) * len(shades), len(shades) - 1).astype(int)
        return "\n".join("".join(shades[level] * 2 for level in row) for row in levels)


def load(_root: Path, _split: int, seed: int) -> LabelledGraph:
    return with_drawing(seed)[0]


def with_drawing(seed: int = 0) -> tuple[LabelledGraph, Drawing]:
    """The digits as a graph, without one test digit, which becomes the drawing."""
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = (pixels / 16).astype(np.float32), labels.astype(np.int64)
    labelled = np.ones(len(pixels), dtype=bool)
    split = random_split(labelled, seed, stream=())  # the split of the demo that ships with the package
    drawn = int(np.flatnonzero(split == TEST)[0])
    kept = np.delete(np.arange(len(pixels)), drawn)
    stored = pixels[kept]
    near = nearest(stored, stored, NEIGHBORS + 1)  # every digit is its own nearest; `Graph.build` drops self-loops
    edges = np.stack([np.repeat(np.arange(len(stored)), NEIGHBORS + 1), near.reshape(-1)])
    edges = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    data = LabelledGraph("digits", Graph.build(stored, edges), labels[kept], split[kept], class_names=CLASS_NAMES)
    drawing = pixels[drawn : drawn + 1]
    return data, Drawing(drawing[0], int(labels[drawn]), nearest(stored, drawing, NEIGHBORS)[0])


def nearest(stored: NDArray[np.float32], digits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The `count` most similar stored digits of each digit; a tie goes to the lower number.

    Pixels are sixteenths, so squared distances are exact in float64 and the graph is the same on every machine.
    """
    left, right = digits.astype(np.float64), stored.astype(np.float64)
    distances = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    return np.argsort(distances, axis=1, kind="stable")[:, :count]
