"""The products of training with two constant CSR matrices: the propagation P and sparse features X.

P = D^-1/2 (A + I) D^-1/2 is symmetric, so its backward pass is the same product. X is transposed once. Nothing is rebuilt
per training step, and nothing is gathered per edge.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer.adjacency import Adjacency
from sgformer.arrays.torch_operations import csr_tensor, shared
from sgformer.features import SparseRows


class Propagation:
    """P of a graph, or a range of its rows."""

    def __init__(self, matrix: torch.Tensor, own: torch.Tensor) -> None:
        """`matrix` holds the weights of the edges and shares the indices of the graph; `own` holds the diagonal."""
        self.matrix = matrix
        self.own = own

    @classmethod
    def of(cls, adjacency: Adjacency, dtype: torch.dtype, device: torch.device | str = "cpu") -> Propagation:
        return PropagationRows(adjacency, dtype, device).between(0, adjacency.num_nodes)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """P times states, differentiable."""
        return _multiply(self._times, self._times, states)

    def _times(self, states: torch.Tensor) -> torch.Tensor:
        return self.product(states, states)

    def scaled(self, factors: torch.Tensor) -> Propagation:
        """This matrix with the weight of every edge times its factor, and the same diagonal.

        `factors` has a factor per stored entry; of the two factors of an edge, the one above the diagonal counts. So the
        result is symmetric, as the backward pass requires. Only for a matrix of all rows of a graph.
        """
        indptr, indices = self.matrix.crow_indices(), self.matrix.col_indices()
        above = torch.repeat_interleave(torch.arange(len(indptr) - 1, device=indices.device), indptr.diff()) < indices
        factors = torch.where(above, factors, factors[self._mirrored])
        return Propagation(with_values(self.matrix, self.matrix.values() * factors), self.own)

    @cached_property
    def _mirrored(self) -> torch.Tensor:
        """For every entry, the position of its mirror image: the entries of a symmetric matrix ordered by column."""
        return torch.argsort(self.matrix.col_indices(), stable=True)

    def product(self, states: torch.Tensor, own_states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """These rows of P times all states; `own_states` are the states of the nodes of these rows."""
        # In place: an out-of-place sparse product first fills its result with zeros and copies it.
        return torch.mul(self.own, own_states, out=out).addmm_(self.matrix, states)


class PropagationRows:
    """Makes ranges of rows of P on demand: a forward over a large graph need not hold all edge weights."""

    def __init__(
        self,
        adjacency: Adjacency,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        degrees: NDArray[np.int64] | None = None,
    ) -> None:
        """`degrees`: those of the nodes of all columns, if `adjacency` has the first rows of a graph only."""
        self._adjacency = adjacency
        self._dtype, self._device = dtype, device
        self._root = ((adjacency.all_degrees() if degrees is None else degrees) + 1.0) ** -0.5
        self._rounded_root = torch.from_numpy(self._root).to(dtype).numpy()

    def neighbors(self, start: int, stop: int) -> NDArray[np.integer[Any]]:
        """The columns in which these rows have entries, ascending."""
        first, last = self._adjacency.indptr[[start, stop]]
        return np.unique(self._adjacency.indices[first:last])

    def between(self, start: int, stop: int, columns: NDArray[np.integer[Any]] | None = None) -> Propagation:
        """These rows of P; with the `columns` of `neighbors`, for a product with the states of these nodes only."""
        indptr = self._adjacency.indptr[start : stop + 1]
        indices = self._adjacency.indices[indptr[0] : indptr[-1]]
        weights = np.repeat(self._rounded_root[start:stop], np.diff(indptr))
        weights *= self._rounded_root[indices]
        values = torch.from_numpy(weights).to(self._device)
        places, width = (indices, len(self._root)) if columns is None else (columns.searchsorted(indices), len(columns))
        matrix = csr_tensor(indptr - indptr[0], places, values, width)
        diagonal = torch.from_numpy(self._root[start:stop] ** 2)[:, None].to(self._device, self._dtype)
        return Propagation(matrix, diagonal)


class SparseFeatures:
    """Sparse feature rows with their transpose, for `rows @ weight` and its gradient."""

    def __init__(self, rows: SparseRows, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        values = shared(rows.values).to(device, dtype)
        self.matrix = csr_tensor(rows.indptr, rows.indices, values, rows.width)
        order = np.argsort(rows.indices, kind="stable")
        indptr = np.zeros(rows.width + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows.indices, minlength=rows.width), out=indptr[1:])
        self._order = torch.from_numpy(order).to(device)
        self.transposed = csr_tensor(indptr, rows.row_numbers()[order], values[self._order], rows.shape[0])

    def scaled(self, factors: torch.Tensor) -> SparseFeatures:
        """These rows with every stored value times its factor."""
        scaled = copy(self)
        values = self.matrix.values() * factors
        scaled.matrix = with_values(self.matrix, values)
        scaled.transposed = with_values(self.transposed, values[self._order])
        return scaled

    def __matmul__(self, weight: torch.Tensor) -> torch.Tensor:
        return _multiply(self.matrix.__matmul__, self.transposed.__matmul__, weight)


def with_values(matrix: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A CSR matrix with other values. Shares the indices."""
    return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, matrix.shape, check_invariants=False)


Product: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def _multiply(product: Product, transposed: Product, states: torch.Tensor) -> torch.Tensor:
    """The product of a constant matrix with `states`; `transposed` multiplies by its transpose, for the gradient."""
    return _ConstantProduct.apply(product, transposed, states)  # type: ignore[no-any-return, no-untyped-call]  # torch's stub


class _ConstantProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: Product, transposed: Product, states: torch.Tensor) -> torch.Tensor:
        ctx.transposed = transposed
        return product(states)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, torch.Tensor]:
        return None, None, ctx.transposed(gradient)


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """rows weight^T + bias. Faster than torch's on a CPU, which first copies the bias into every row."""
    out = rows @ weight.t()
    return out if bias is None else out.add_(bias)


def rows_of(states: torch.Tensor, nodes: torch.Tensor | None) -> torch.Tensor:
    """The rows of these nodes, each at most once, or all rows."""
    return states if nodes is None else _SomeRows.apply(states, nodes)  # type: ignore[no-untyped-call]  # torch's stub


class _SomeRows(torch.autograd.Function):
    """Indexing that does not sort the indices in its backward pass, as torch does in case they repeat."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        ctx.nodes, ctx.shape = nodes, states.shape
        return states[nodes]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.new_zeros(ctx.shape).index_copy_(0, ctx.nodes, gradient), None
