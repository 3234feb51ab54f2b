"""Where arrays as large as a graph lie: in memory, or in files that the caller of this package opens."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Allocate: TypeAlias = Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Makes a writable array for a result, e.g. a memory-mapped file."""
OpenFile: TypeAlias = Callable[[int], int]
"""Opens a new file of this many bytes, which has no name, and returns its descriptor. The caller closes it."""


def in_memory(_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.empty(shape, dtype=dtype)


def file_in_memory(size: int) -> int:
    """An `OpenFile` for files that lie in memory. Unlike those of /dev/shm, they may be as large as the memory."""
    descriptor = os.memfd_create("sgformer")
    os.ftruncate(descriptor, size)
    return descriptor


def file_size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The bytes of an array, and at least one: no empty file can be mapped."""
    return max(1, int(np.prod(shape)) * dtype.itemsize)


def map_array(descriptor: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A writable array over an open file of `file_size` bytes, which may be closed then."""
    return np.ndarray(shape, dtype, buffer=mmap.mmap(descriptor, file_size(shape, dtype)))


def new_array(open_file: OpenFile, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A writable array in a new file."""
    descriptor = open_file(file_size(shape, dtype))
    try:
        return map_array(descriptor, shape, dtype)
    finally:
        os.close(descriptor)
