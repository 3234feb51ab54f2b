"""Decides whether features are words or columns of a table, and chooses the transform (`feature_transform = "auto"`).

Words are not divided by the sum of their row. Adam adds the weight decay to gradients, which are as small as the features:
on rows that sum to 1, decay outweighs them, and training is slow or ends with the majority class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import SparseRows
from sgformer.config import FeatureTransform
from sgformer.features import FeatureRows

SAMPLED_ROWS = 20_000
"""Of dense features; sparse ones are read whole."""
MIN_WORDS = 32
"""The smallest width of a bag of words. A narrower table is a few columns of different kinds."""
MAX_FILLED = 0.25
"""The largest share of non-zero values in a bag of words."""


@dataclass(frozen=True)
class ScalingChoice:
    transform: FeatureTransform
    reason: str

    def __str__(self) -> str:
        return f"{self.transform} ({self.reason})"


def is_table(features: FeatureRows) -> bool:
    """Whether the features are the columns of a table: numbers, or fewer than MIN_WORDS columns of 0 and 1; not words."""
    columns = _Columns.of(features)
    return not columns.are_words and (not columns.is_binary or len(columns.filled) < MIN_WORDS)


def choose_scaling(features: FeatureRows) -> ScalingChoice:
    """The choice depends on the features only, not on labels or on the split."""
    columns = _Columns.of(features)
    if columns.is_binary:
        return ScalingChoice("none", "auto: all values are 0 or 1")
    if columns.are_words:
        return ScalingChoice("none", "auto: counts or weights of words")
    return ScalingChoice("standard", "auto: columns of numbers")


@dataclass(frozen=True)
class _Columns:
    """Statistics of every column, over the sampled rows."""

    filled: NDArray[np.float64]
    """The share of values that are not 0."""
    sums: NDArray[np.float64]
    """Of absolute values."""
    lowest: float
    is_binary: bool

    @classmethod
    def of(cls, features: FeatureRows) -> _Columns:
        if isinstance(features, SparseRows):
            values: NDArray[Any] = features.values
            filled = np.bincount(features.indices[values != 0], minlength=features.width) / max(features.shape[0], 1)
            sums = np.bincount(features.indices, np.abs(values), features.width).astype(np.float64)
        else:
            values = features[:: max(1, len(features) // SAMPLED_ROWS)]
            filled, sums = (values != 0).mean(axis=0), np.abs(values).sum(axis=0, dtype=np.float64)
        is_binary = bool(((values == 0) | (values == 1)).all())
        return cls(filled, sums, float(values.min(initial=0)), is_binary)

    @property
    def are_words(self) -> bool:
        """Many columns, most values 0, none negative. If columns of numbers stand beside words, they have few zeros and hold
        most of the sum of all values: then the features are not words.
        """
        few_filled = len(self.filled) >= MIN_WORDS and self.filled.mean() <= MAX_FILLED and self.lowest >= 0
        return bool(few_filled and self.sums[self.filled > 0.5].sum() <= self.sums.sum() / 2)
