"""Writes and memory-maps npy files. A file is mapped only if its header is exactly the expected one."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from model_store.errors import SnapshotError
from model_store.format.layout import ArraySpec

MAX_HEADER_BYTES = 4096
CHUNK_BYTES = 2**25


def create(path: Path, spec: ArraySpec) -> NDArray[Any]:
    """Creates a file of this shape and returns its array, mapped for writing.

    Allocates all blocks of the file: a full disk raises OSError here instead of SIGBUS at a later write to a mapped page.
    """
    with _create_with_header(path, spec) as file:
        offset = file.tell()
        if not spec.data_bytes:
            return np.empty(spec.shape, dtype=spec.dtype)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, offset + spec.data_bytes)
    return np.memmap(path, mode="r+", dtype=spec.dtype, shape=spec.shape, offset=offset)


def write(path: Path, array: NDArray[Any], spec: ArraySpec) -> None:
    """Writes an array with the type of `spec`, converted in chunks to bound memory."""
    if array.shape != spec.shape:
        raise ValueError(f"{path.name} would have shape {array.shape}, expected {spec.shape}")
    with _create_with_header(path, spec) as file:
        rows = max(1, CHUNK_BYTES * len(array) // max(1, spec.data_bytes))
        for start in range(0, len(array), rows):
            file.write(np.ascontiguousarray(array[start : start + rows], dtype=spec.dtype).tobytes())


def open_mapped(folder: Path, name: str, spec: ArraySpec) -> NDArray[Any]:
    """Returns the array of a file, mapped read-only: all processes that map it share its pages.

    Raises:
        SnapshotError: the header or the length is not exactly what `spec` demands. Allocates nothing in that case.
    """
    with (folder / name).open("rb") as file:
        offset = _check_header(file, name, spec)
        if not spec.data_bytes:
            return np.empty(spec.shape, dtype=spec.dtype)
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_RANDOM)  # requests read single rows: read-ahead would only fill memory
    return np.ndarray(spec.shape, spec.dtype, buffer=pages, offset=offset)


def read_rows(folder: Path, name: str, spec: ArraySpec, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Returns a few rows, read instead of mapped: each mapped row would make about 64 kB around it resident."""
    row_bytes = spec.data_bytes // spec.shape[0]
    with (folder / name).open("rb", buffering=0) as file:
        offset = _check_header(file, name, spec)
        data = b"".join(os.pread(file.fileno(), row_bytes, offset + int(row) * row_bytes) for row in rows)
    return np.frombuffer(data, dtype=spec.dtype).reshape(len(rows), *spec.shape[1:])


def _create_with_header(path: Path, spec: ArraySpec) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("xb")
    npy_format.write_array_header_1_0(file, {"descr": spec.dtype, "fortran_order": False, "shape": spec.shape})
    return file


def _check_header(file: Any, name: str, spec: ArraySpec) -> int:
    """Returns the offset of the data.

    numpy parses the header with `ast.literal_eval`, which runs no code. Object arrays match no `spec`.
    """
    try:
        magic = npy_format.read_magic(file)
        shape, fortran_order, dtype = npy_format.read_array_header_1_0(file, max_header_size=MAX_HEADER_BYTES)
    except (OSError, MemoryError):  # a failure of the machine, not of the content
        raise
    except Exception as error:  # numpy's parser raises many types of errors for malformed headers
        raise SnapshotError(name, f"is not an npy file: {error}") from error
    if magic != (1, 0):
        raise SnapshotError(name, f"is an npy file of version {magic}, expected 1.0")
    if dtype != np.dtype(spec.dtype):
        raise SnapshotError(name, f"holds {dtype.str}, expected {spec.dtype}")
    if fortran_order:
        raise SnapshotError(name, "is in Fortran order, expected C order")
    if shape != spec.shape:
        raise SnapshotError(name, f"has shape {shape}, expected {spec.shape}")
    offset, size = int(file.tell()), os.fstat(file.fileno()).st_size
    if size != offset + spec.data_bytes:
        raise SnapshotError(name, f"is {size:,} bytes long, expected {offset + spec.data_bytes:,} for {shape} {spec.dtype}")
    return offset
