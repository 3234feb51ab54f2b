"""Rows whose squares overflow float32 become NaN, on numpy as on torch."""

from __future__ import annotations

import numpy as np
import torch

from sgformer.arrays.operations import NUMPY, ops_for
from sgformer.torch_model.attention import unit_rows

ROWS = np.array([[1, -2, 3, 4], [1e25, -2e25, 3e25, 4e25], [0.5, 0.25, -1, 2]], dtype=np.float32)


def test_a_layer_norm_that_overflows_is_nan() -> None:
    weight, bias = np.full(4, 2, dtype=np.float32), np.ones(4, dtype=np.float32)
    with np.errstate(over="ignore"):
        result = NUMPY.layer_norm(ROWS, weight, bias, 1e-5)
    expected = torch.nn.functional.layer_norm(torch.from_numpy(ROWS), (4,), torch.from_numpy(weight), torch.from_numpy(bias))
    assert np.isnan(result[1]).all()
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-5)


def test_a_unit_row_whose_length_overflows_is_nan() -> None:
    with np.errstate(over="ignore"):
        result = NUMPY.unit(ROWS, 1e-6)
    assert np.isnan(result[1]).all()
    np.testing.assert_allclose(result, ops_for(torch.from_numpy(ROWS)).unit(torch.from_numpy(ROWS), 1e-6).numpy(), rtol=1e-5)
    np.testing.assert_allclose(result[[0, 2]], unit_rows(torch.from_numpy(ROWS[[0, 2]]), 1e-6).numpy(), rtol=1e-5)
