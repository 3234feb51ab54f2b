"""From logits to probabilities: softmax or sigmoid. numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.config import Task


def probabilities(logits: NDArray[np.floating[Any]], task: Task) -> NDArray[np.floating[Any]]:
    """Of logits (n, C): per class (multiclass: rows sum to 1) or per label (multilabel).

    Raises ValueError for regression, which has none.
    """
    if task == "regression":
        raise ValueError("a regression model predicts values, not probabilities")
    if task == "multilabel":
        # exp of a negative number only: no overflow, whatever the logit.
        small = np.exp(-np.abs(logits))
        shares = np.where(logits >= 0, 1, small) / (1 + small)
    else:
        # The largest of each row, taken column by column: rows are short, and numpy charges by the row.
        shares = np.exp(logits - np.maximum.reduce(logits.T.copy())[:, None])
        # A dot product per row: quicker than a reduction, and its bits depend on that row only.
        shares /= np.vecdot(shares, np.ones(shares.shape[1], dtype=shares.dtype))[:, None]
    return np.asarray(shares, dtype=logits.dtype)
