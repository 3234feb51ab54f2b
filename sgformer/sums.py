"""The global attention sums, from which the all-pair attention of a row is computed (docs/mathematics.md section 3).

With S = K^T V, s = K^T 1 and the norms of Q and K, the attention of a row costs O(d^2), independent of N. The sums are
additive: sums over chunks, processes or machines add up to the sums over all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sgformer.arrays.operations import Array, ops_for
from sgformer.config import Normalization
from sgformer.errors import SumsError

SUM_NAMES = ("key_value", "key", "query_square", "key_square")
"""The fields of `AttentionSums` that are sums over rows."""


@dataclass(frozen=True)
class AttentionSums:
    """Float64 sums over `count` rows of queries, keys and values (n, heads, hidden), as `InferenceModel` computes them.

    Values may also be (n, 1, hidden), the same for all heads. With `row` normalisation the queries and keys are unit rows,
    and the two squared norms stay zero.
    """

    normalization: Normalization
    key_value: Array
    """S: (heads, hidden, hidden)."""
    key: Array
    """s: (heads, hidden)."""
    query_square: Array
    """|Q|^2 over all rows and all heads: the authors' code takes the norm of the whole matrix."""
    key_square: Array
    count: int

    @classmethod
    def empty(cls, normalization: Normalization, heads: int, hidden: int) -> AttentionSums:
        zero = np.float64(0)
        return cls(normalization, np.zeros((heads, hidden, hidden)), np.zeros((heads, hidden)), zero, zero, 0)

    @classmethod
    def of_rows(cls, normalization: Normalization, query: Array | None, key: Array, value: Array) -> AttentionSums:
        """The sums over these rows. Products run in the precision of the rows: for accuracy, pass chunks and add the sums.

        `query` may be None with `row` normalisation, which does not sum over queries.
        """
        by_head = key.swapaxes(0, 1).swapaxes(1, 2)  # (H, d, n)
        key_value = by_head @ value.swapaxes(0, 1)  # (H, d, d)
        squares = (0.0, 0.0) if normalization == "row" else (_square_norm(query), _square_norm(key))
        query_square, key_square = map(_double, squares)
        return cls(normalization, _double(key_value), _double(key.sum(0)), query_square, key_square, len(key))

    def __add__(self, other: AttentionSums) -> AttentionSums:
        return self._combined(other, 1)

    def __sub__(self, other: AttentionSums) -> AttentionSums:
        return self._combined(other, -1)

    def with_rows(self, query: Array, key: Array, value: Array) -> AttentionSums:
        """The sums with these rows added: a rank-n update."""
        return self + self.of_rows(self.normalization, query, key, value)

    def attend(self, query: Array, value: Array) -> Array:
        """The attention output (n, hidden) of rows that these sums include, averaged over the heads."""
        if self.count < 1:
            raise SumsError("attention needs sums over at least one row, these are over none")
        return _weighted(value, *self._products(query, self.scale))

    @property
    def scale(self) -> Array:
        """The factor of Q S and Q s: 1 / (|Q| |K| N), or 1 / N for unit rows."""
        return _scale(self.normalization, self.query_square, self.key_square, self.count)

    def attend_each_added(self, query: Array, key: Array, value: Array, added: Array | None = None) -> Array:
        """The attention output of new rows, each as if only that row were added (`with_rows`), without n copies of the sums.

        `added` (n, 1, 1), if given, is 0 for rows that the sums include already, and 1 for new rows.
        """
        mixed, total = self._products(query)
        count = self.count + (1 if added is None else _double(added))
        if added is not None:
            query, key = query * added, key * added
        own = (query * key).sum(-1)[:, :, None]  # (n, H, 1)
        query_square, key_square = self.query_square, self.key_square
        if self.normalization == "frobenius":
            query_square = query_square + _double((query * query).sum((1, 2)))[:, None, None]
            key_square = key_square + _double((key * key).sum((1, 2)))[:, None, None]
        scale = ops_for(query).cast(_scale(self.normalization, query_square, key_square, count), like=query)
        return _weighted(value, (mixed + own * value) * scale, (total + own) * scale)

    def attend_parts(self, query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        """`attend` as a sum of two parts: what each row adds to its own output, and what all other rows add. numpy only."""
        mixed, total = self._products(query, scale := self.scale)
        own = (query * key).sum(-1)[:, :, None] * scale * value  # (n, H, d)
        return ((value + own) / (1 + total)).mean(1), ((mixed - own) / (1 + total)).mean(1)

    def to(self, like: Array) -> AttentionSums:
        """The same float64 sums on the device of `like`, so that `attend` copies nothing between devices."""
        return self._mapped(lambda array: ops_for(like).cast(array, like=_double(like)))

    def on_host(self) -> AttentionSums:
        """The same sums as numpy arrays."""
        return self._mapped(lambda array: array.cpu().numpy() if hasattr(array, "cpu") else array)

    def _mapped(self, convert: Callable[[Array], Array]) -> AttentionSums:
        return replace(self, **{name: convert(getattr(self, name)) for name in SUM_NAMES})

    def _products(self, query: Array, scale: Array | float = 1.0) -> tuple[Array, Array]:
        """Q S and Q s, times `scale`."""
        ops = ops_for(query)
        mixed = ops.head_product(query, ops.cast(self.key_value * scale, like=query))  # (n, H, d)
        total = ops.head_product(query, ops.cast((self.key * scale)[:, :, None], like=query))  # (n, H, 1)
        return mixed, total

    def _combined(self, other: AttentionSums, sign: int) -> AttentionSums:
        if self.normalization != other.normalization or self.key_value.shape != other.key_value.shape:
            raise SumsError(
                f"sums of {self.normalization} normalisation and shape {tuple(self.key_value.shape)} "
                f"cannot be combined with {other.normalization} and {tuple(other.key_value.shape)}"
            )
        if self.count + sign * other.count < 0:
            raise SumsError(f"{other.count} rows cannot be removed from sums over {self.count}")
        combined = {name: getattr(self, name) + sign * getattr(other, name) for name in (*SUM_NAMES, "count")}
        return replace(self, **combined)


def _scale(normalization: Normalization, query_square: Array, key_square: Array, count: Array) -> Array:
    """1 / (|Q| |K| N), or 1 / N for unit rows; 0 instead of infinity if all queries or all keys are zero."""
    if normalization == "row":
        return np.float64(1) / count
    norms = (query_square * key_square) ** 0.5 * count
    return (norms > 0) / (norms + (norms == 0))


def _weighted(value: Array, mixed: Array, total: Array) -> Array:
    """[V + Q~ S] / [1 + Q~ s] per row, then the mean over the heads. Overwrites `mixed` and `total`."""
    mixed += value
    total += 1
    mixed /= total
    return mixed[:, 0] if mixed.shape[1] == 1 else mixed.mean(1)


def _square_norm(rows: Array) -> Array:
    return (rows * rows).sum()


def _double(array: Any) -> Array:
    return array.double() if hasattr(array, "double") else np.asarray(array, dtype=np.float64)
