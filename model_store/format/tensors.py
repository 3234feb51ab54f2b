"""Writes and reads safetensors files: the weights, the sums and the probes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from model_store.errors import SnapshotError
from model_store.format.layout import MAX_TENSOR_FILE_BYTES

Tensors = dict[str, NDArray[Any]]


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, path)
    path.chmod(0o644)  # safetensors creates files that only their owner can read; a service may run as another user


def read_tensors(folder: Path, name: str) -> Tensors:
    """Returns all tensors of a file. The file's size, which is checked first, bounds the memory they need.

    Raises:
        SnapshotError: not a safetensors file, or larger than the limit.
    """
    size = (folder / name).stat().st_size
    if size > MAX_TENSOR_FILE_BYTES:
        raise SnapshotError(name, f"{size:,} bytes long, the limit is {MAX_TENSOR_FILE_BYTES:,}")
    try:
        with safe_open(folder / name, framework="numpy") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not a mapping
    except (SafetensorError, TypeError, ValueError, KeyError, AttributeError) as error:
        reason = "it holds bfloat16, convert it to float32" if "bfloat16" in str(error) else error
        raise SnapshotError(name, f"not a safetensors file that can be read: {reason}") from error
