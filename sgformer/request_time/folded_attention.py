"""The attention of known nodes as one product per row, for many answers from the same sums. numpy only.

With Q~ = Q / |Q|, both parts of the attention (docs/mathematics.md section 1) are affine in Z0:

    V + Q~ (K~^T V) / N = Z0 (c Wq S + Wv) + (c bq S + bv)        c = 1 / (N |Q| |K|)
    1 + Q~ (K~^T 1) / N = Z0 (c Wq s) + (c bq s + 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer.arrays.operations import NUMPY, Array
from sgformer.request_time.layers import Affine
from sgformer.sums import AttentionSums


@dataclass(frozen=True)
class FoldedAttention:
    heads: int
    weight: Array
    """(d, H d + H): for every head the numerator, then the denominators of all heads."""
    bias: Array

    def __call__(self, inputs: Array) -> Array:
        """The attention output (n, d) of rows that the sums include, from their Z0."""
        out = NUMPY.affine(inputs, self.weight, self.bias)
        attended = out[:, : -self.heads].reshape(len(out), self.heads, inputs.shape[1])
        attended /= out[:, -self.heads :, None]
        return attended[:, 0] if self.heads == 1 else attended.mean(1)


def fold_attention(sums: AttentionSums, query: Affine, value: Affine | None, dtype: np.dtype[Any]) -> FoldedAttention:
    """For sums with `frobenius` normalisation. Folds in float64, then rounds once to `dtype`.

    Args:
        value: None if the values are Z0.
    """
    heads, hidden = sums.key.shape
    maps = _with_bias(query, heads, hidden)  # (H, d + 1, d): the last row is the bias
    values = np.eye(hidden + 1, hidden)[None] if value is None else _with_bias(value, heads, hidden)
    numerators = maps @ (sums.key_value * sums.scale) + values
    denominators = maps @ (sums.key * sums.scale)[:, :, None]
    denominators[:, -1] += 1
    folded = np.concatenate([part.swapaxes(0, 1).reshape(hidden + 1, -1) for part in (numerators, denominators)], axis=1)
    return FoldedAttention(heads, folded[:-1].astype(dtype), folded[-1].astype(dtype))


def _with_bias(affine: Affine, heads: int, hidden: int) -> NDArray[np.float64]:
    weight: Any = affine.weight
    bias = np.zeros(heads * hidden) if affine.bias is None else affine.bias
    rows = np.concatenate([weight, bias[None]]).astype(np.float64)
    return rows.reshape(hidden + 1, heads, hidden).swapaxes(0, 1)
