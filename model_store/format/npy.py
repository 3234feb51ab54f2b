"""npy files: made at their full size before a byte is computed, and mapped only when their header is the expected one."""

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


def create(path: Path, spec: ArraySpec) -> NDArray[Any]:
    """A new file of this shape, mapped for writing.

    Its blocks are allocated here: a full disk is an OSError now, and not a SIGBUS when a mapped page is written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        _write_header(file, spec)
        begin = file.tell()
        if spec.data_bytes:
            file.flush()
            os.posix_fallocate(file.fileno(), 0, begin + spec.data_bytes)
    if not spec.data_bytes:
        return np.empty(spec.shape, dtype=spec.dtype)
    return np.memmap(path, mode="r+", dtype=spec.dtype, shape=spec.shape, offset=begin)


def write(path: Path, array: NDArray[Any], spec: ArraySpec, chunk_rows: int = 65_536) -> None:
    """Writes an array as `spec` says, converted chunk by chunk."""
    if array.shape != spec.shape:
        raise ValueError(f"{path.name} would have shape {array.shape}, expected {spec.shape}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        _write_header(file, spec)
        for start in range(0, len(array), chunk_rows):
            file.write(np.ascontiguousarray(array[start : start + chunk_rows], dtype=spec.dtype).tobytes())


def open_mapped(folder: Path, name: str, spec: ArraySpec) -> NDArray[Any]:
    """The array of a file, read-only, sharing its pages with every process that maps it.

    Raises:
        SnapshotError: the file is not, to the byte, what `spec` says. Nothing is allocated before that is known.
    """
    with (folder / name).open("rb") as file:
        begin = _checked_header(file, name, spec)
        if not spec.data_bytes:
            return np.empty(spec.shape, dtype=spec.dtype)
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_RANDOM)  # requests read single rows: reading ahead would only fill memory
    return np.ndarray(spec.shape, spec.dtype, buffer=pages, offset=begin)


def read_rows(folder: Path, name: str, spec: ArraySpec, rows: NDArray[np.int64]) -> NDArray[Any]:
    """A few rows, read and not mapped: each mapped row would make some 64 kB around it resident."""
    row_bytes = spec.data_bytes // spec.shape[0]
    with (folder / name).open("rb", buffering=0) as file:
        begin = _checked_header(file, name, spec)
        parts = [os.pread(file.fileno(), row_bytes, begin + int(row) * row_bytes) for row in rows]
    return np.frombuffer(b"".join(parts), dtype=spec.dtype).reshape(len(rows), *spec.shape[1:])


def _write_header(file: BinaryIO, spec: ArraySpec) -> None:
    npy_format.write_array_header_1_0(file, {"descr": spec.dtype, "fortran_order": False, "shape": spec.shape})


def _checked_header(file: Any, name: str, spec: ArraySpec) -> int:
    """The offset of the data. The header is parsed as a literal: no pickle, no code, no object array."""
    try:
        magic = npy_format.read_magic(file)
        shape, fortran_order, dtype = npy_format.read_array_header_1_0(file, max_header_size=MAX_HEADER_BYTES)
    except (OSError, MemoryError):  # not the fault of the content
        raise
    except Exception as error:  # numpy's parser has many ways to fail on bytes that are no header
        raise SnapshotError(name, f"not an npy file: {error}") from error
    if magic != (1, 0):
        raise SnapshotError(name, f"an npy file of version {magic}, expected 1.0")
    if dtype != np.dtype(spec.dtype):
        raise SnapshotError(name, f"holds {dtype.str}, expected {spec.dtype}")
    if fortran_order:
        raise SnapshotError(name, "is in Fortran order, expected C order")
    if shape != spec.shape:
        raise SnapshotError(name, f"has shape {shape}, expected {spec.shape}")
    begin, size = int(file.tell()), os.fstat(file.fileno()).st_size
    if size != begin + spec.data_bytes:
        raise SnapshotError(name, f"{size:,} bytes long, expected {begin + spec.data_bytes:,} for {shape} {spec.dtype}")
    return begin
