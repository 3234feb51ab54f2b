"""From logits to probabilities: softmax or sigmoid. numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.config import Task


def probabilities(logits: NDArray[np.floating[Any]], task: Task) -> NDArray[np.floating[Any]]:
    """The probabilities of classes (multiclass: rows sum to 1) or of labels (multilabel), from logits (n, C).

    Raises ValueError for regression, which has no probabilities.
    """
    if task == "regression":
        raise ValueError("a regression model predicts values, not probabilities")
    if task == "multilabel":
        # The argument of exp is never positive, so nothing overflows.
        small = np.exp(-np.abs(logits))
        shares = np.where(logits >= 0, 1, small) / (1 + small)
    else:
        # The maximum of each row, column by column: rows are short, and numpy has a cost per row.
        shares = np.exp(logits - np.maximum.reduce(logits.T.copy())[:, None])
        # A dot product per row is faster than a reduction, and its bits depend on that row only.
        shares /= np.vecdot(shares, np.ones(shares.shape[1], dtype=shares.dtype))[:, None]
    return np.asarray(shares, dtype=logits.dtype)
