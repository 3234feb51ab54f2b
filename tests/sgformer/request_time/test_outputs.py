from __future__ import annotations

import numpy as np
import pytest
import torch

from sgformer import probabilities

LOGITS = np.array([[0.0, 1.0, -2.0], [800.0, -800.0, 3.0]])


def test_multiclass_probabilities_are_a_softmax() -> None:
    np.testing.assert_allclose(probabilities(LOGITS, "multiclass"), torch.from_numpy(LOGITS).softmax(dim=1).numpy())


def test_multilabel_probabilities_are_sigmoids() -> None:
    np.testing.assert_allclose(probabilities(LOGITS, "multilabel"), torch.from_numpy(LOGITS).sigmoid().numpy(), atol=1e-300)


def test_regression_has_no_probabilities() -> None:
    with pytest.raises(ValueError, match="regression"):
        probabilities(LOGITS, "regression")
