"""Arrays in temporary files, for states that exceed memory. The files have no name: a killed run leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgformer import Graph
from sgformer.full_graph.shard import Allocate, in_memory


def on_disk(_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A writable array in a nameless file of the folder for temporary files (TMPDIR).

    Raises OSError if the disk is full, before anything is written.
    """
    size = max(1, int(np.prod(shape)) * dtype.itemsize)
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)
        pages = mmap.mmap(file.fileno(), size)
    return np.ndarray(shape, dtype, buffer=pages)


def allocator_for(graph: Graph) -> Allocate:
    """Files for a graph that is mapped from files, else memory."""
    return on_disk if isinstance(graph.adjacency.indptr.base, mmap.mmap) else in_memory
