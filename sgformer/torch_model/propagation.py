"""The products of training. Most are with two matrices that do not change: the propagation P and sparse features X.

Both are CSR. P = D^-1/2 (A + I) D^-1/2 is symmetric, so its backward pass is the same product; X is transposed
once. Nothing is rebuilt per step and nothing is gathered per edge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sgformer.adjacency import Adjacency
from sgformer.arrays.torch_operations import csr_tensor, shared
from sgformer.features import SparseRows


class Propagation:
    """P of one graph, or of a run of its rows."""

    def __init__(self, matrix: torch.Tensor, own: torch.Tensor) -> None:
        """`matrix` holds the edges' weights without the diagonal, which is `own`: so it shares the graph's indices."""
        self.matrix = matrix
        self.own = own

    @classmethod
    def of(cls, adjacency: Adjacency, dtype: torch.dtype, device: torch.device | str = "cpu") -> Propagation:
        return Rows(adjacency, dtype, device).between(0, adjacency.num_nodes)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """P times states, differentiable."""
        return _SymmetricProduct.apply(self, states)  # type: ignore[no-any-return, no-untyped-call]  # torch's stub

    def product(self, states: torch.Tensor, own_states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """These rows of P times all states; `own_states` are the states of these rows."""
        # In place: an out-of-place sparse product would fill its result with zeros and copy it before it begins.
        return torch.mul(self.own, own_states, out=out).addmm_(self.matrix, states)


class Rows:
    """Runs of rows of P, made when asked for: a forward over a large graph need not hold all edge weights."""

    def __init__(self, adjacency: Adjacency, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self._adjacency = adjacency
        self._dtype, self._device = dtype, device
        self._root = (adjacency.all_degrees() + 1.0) ** -0.5
        self._narrow_root = torch.from_numpy(self._root).to(dtype).numpy()

    def between(self, start: int, stop: int) -> Propagation:
        indptr = self._adjacency.indptr[start : stop + 1]
        indices = self._adjacency.indices[indptr[0] : indptr[-1]]
        root = self._root[start:stop]
        weights = np.repeat(self._narrow_root[start:stop], np.diff(indptr))
        weights *= self._narrow_root[indices]
        values = torch.from_numpy(weights).to(self._device)
        matrix = csr_tensor(indptr - indptr[0], indices, values, self._adjacency.num_nodes)
        own = torch.from_numpy(root**2)[:, None].to(self._device, self._dtype)
        return Propagation(matrix, own)


class SparseFeatures:
    """Sparse feature rows with their transpose, for `rows @ weight` and its gradient."""

    def __init__(self, rows: SparseRows, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        values = shared(rows.values).to(device, dtype)
        self.matrix = csr_tensor(rows.indptr, rows.indices, values, rows.width)
        order = np.argsort(rows.indices, kind="stable")
        indptr = np.zeros(rows.width + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows.indices, minlength=rows.width), out=indptr[1:])
        turned = values[torch.from_numpy(order).to(device)]
        self.transposed = csr_tensor(indptr, rows.row_numbers()[order], turned, rows.shape[0])

    def __matmul__(self, weight: torch.Tensor) -> torch.Tensor:
        return _SparseProduct.apply(self, weight)  # type: ignore[no-any-return, no-untyped-call]  # torch's stub


class _SymmetricProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, propagation: Propagation, states: torch.Tensor) -> torch.Tensor:
        ctx.propagation = propagation
        return propagation.product(states, states)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.propagation.product(gradient, gradient)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: SparseFeatures, weight: torch.Tensor) -> torch.Tensor:
        ctx.features = features
        return features.matrix @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.features.transposed @ gradient


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """rows weight^T + bias. torch's own on a CPU first copies the bias into every row, then reads that back."""
    out = rows @ weight.t()
    return out if bias is None else out.add_(bias)


def rows_of(states: torch.Tensor, nodes: torch.Tensor | None) -> torch.Tensor:
    """The rows of these nodes, each at most once; all rows for None."""
    return states if nodes is None else _SomeRows.apply(states, nodes)  # type: ignore[no-untyped-call]  # torch's stub


class _SomeRows(torch.autograd.Function):
    """torch's own gradient sorts the indices, in case one is there twice."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        ctx.nodes, ctx.shape = nodes, states.shape
        return states[nodes]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.new_zeros(ctx.shape).index_copy_(0, ctx.nodes, gradient), None
