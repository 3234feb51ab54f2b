"""The operations of `Ops` on torch: for CUDA, and for the full-graph forward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from sgformer.arrays.operations import NUMPY, AnyIndices, Array, Indices
from sgformer.torch_model.attention import unit_rows


class TorchOps:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def product(self, rows: Array, matrix: Array) -> Array:
        return rows @ matrix

    def affine(self, rows: Array, matrix: Array, bias: Array) -> Array:
        return torch.addmm(bias, rows, matrix)

    def layer_norm(self, rows: Array, weight: Array, bias: Array, epsilon: float) -> Array:
        return F.layer_norm(rows, weight.shape, weight, bias, epsilon)

    def unit(self, rows: Array, filler: float) -> Array:
        unit = unit_rows(rows, filler)
        return unit.masked_fill((unit == 0).all(-1, keepdim=True), torch.nan)  # the length overflowed

    def head_product(self, rows: Array, matrices: Array) -> Array:
        if matrices.shape[0] == 1:
            return (rows[:, 0] @ matrices[0])[:, None]
        return (rows.transpose(0, 1) @ matrices).transpose(0, 1)

    def sparse_product(self, indptr: AnyIndices, indices: AnyIndices, values: NDArray[Any], matrix: Array) -> Array:
        entries = shared(values).to(self.device, matrix.dtype)
        return csr_tensor(indptr, indices, entries, matrix.shape[0]) @ matrix

    def take(self, source: Array, rows: Indices) -> Array:
        if isinstance(source, torch.Tensor):
            return source[torch.from_numpy(rows).to(source.device)]
        return torch.from_numpy(NUMPY.take(source, rows)).to(self.device)

    def segment_sum(self, rows: Array, starts: AnyIndices) -> Array:
        lengths = np.diff(starts, append=len(rows))
        target = torch.from_numpy(np.repeat(np.arange(len(starts)), lengths)).to(self.device)
        return rows.new_zeros((len(starts), *rows.shape[1:])).index_add_(0, target, rows)

    def concat(self, parts: list[Array], axis: int = 0) -> Array:
        return torch.cat(parts, dim=axis)

    def relu(self, rows: Array) -> Array:
        return torch.relu_(rows)

    def mix(self, rows: Array, others: Array, share: float) -> Array:
        return rows.lerp_(others, share)

    def cast(self, array: Array, like: Array) -> Array:
        source = shared(array) if isinstance(array, np.ndarray) else torch.as_tensor(array)
        return source.to(self.device, like.dtype)


def shared(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the memory of `array`. If `array` is a read-only memory map, the caller must not write to the tensor.

    torch warns about read-only arrays, and a warning filter would affect all threads: the array is presented as writable.
    """
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_WritableView(array)))


class _WritableView:
    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # the new array keeps this object alive, which keeps the memory alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = array.__array_interface__ | {"data": (address, False)}


def placed_on(device: torch.device | str) -> Callable[[NDArray[Any]], torch.Tensor]:
    """A function for `InferenceModel(place=...)` that makes tensors on `device`."""
    return lambda array: torch.from_numpy(array).to(device)


def csr_tensor(indptr: AnyIndices, indices: AnyIndices, values: torch.Tensor, width: int) -> torch.Tensor:
    """A torch CSR matrix, with 32-bit indices if they fit, because MKL is faster with them. Shares `indices` if it can."""
    kind = np.int32 if max(len(indices), width) <= np.iinfo(np.int32).max else np.int64
    begins = shared(indptr.astype(kind, copy=False)).to(values.device)
    columns = shared(indices.astype(kind, copy=False)).to(values.device)
    with warnings.catch_warnings():
        # torch warns once per process that CSR tensors are in beta. The tests cover the functions that are used here.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(begins, columns, values, size=(len(indptr) - 1, width), check_invariants=False)
