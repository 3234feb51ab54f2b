"""From logits to probabilities: softmax or sigmoid. numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.config import Task


def probabilities(logits: NDArray[np.floating[Any]], task: Task) -> NDArray[np.floating[Any]]:
    """Per class (multiclass: rows sum to 1) or per label (multilabel). Raises ValueError for regression, which has none."""
    if task == "regression":
        raise ValueError("a regression model predicts values, not probabilities")
    if task == "multilabel":
        # exp of a negative number only: no overflow, whatever the logit.
        small = np.exp(-np.abs(logits))
        shares = np.where(logits >= 0, 1, small) / (1 + small)
    else:
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares = odds / odds.sum(axis=-1, keepdims=True)
    return np.asarray(shares, dtype=logits.dtype)
