"""Arrays in temporary files, for states that exceed memory. The files have no name: a killed run leaves nothing behind."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.format.scratch import scratch_files
from sgformer import Graph
from sgformer.full_graph.storage import Allocate, OpenFile, file_in_memory, in_memory, new_array


def on_disk(_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A writable array in a nameless file of the folder for temporary files (TMPDIR).

    Raises OSError if the disk is full, before anything is written.
    """
    return new_array(scratch_files(), shape, dtype)


def allocator_for(graph: Graph) -> Allocate:
    """Files for a graph that is mapped from files, else memory."""
    return on_disk if _is_mapped(graph) else in_memory


def opener_for(graph: Graph) -> OpenFile:
    """As `allocator_for`, for arrays that several processes may share."""
    return scratch_files() if _is_mapped(graph) else file_in_memory


def _is_mapped(graph: Graph) -> bool:
    return isinstance(graph.adjacency.indptr.base, mmap.mmap)
