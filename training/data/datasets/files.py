"""Helpers of the loaders of published data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store import DataError
from model_store.publish.graph_file import read_arrays
from sgformer import SparseRows
from sgformer.features import FeatureRows

SPARSE_BELOW = 0.1
"""Features with a smaller share of non-zero entries are stored sparse."""


def required(path: Path) -> Path:
    """Returns the path; raises DataError if it does not exist."""
    if not path.exists():
        raise DataError(f"{path} does not exist: set SGF_DATA_ROOT to the folder that holds the data sets")
    return path


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    return read_arrays(required(path), None)


def as_features(dense: NDArray[Any]) -> FeatureRows:
    """Converts dense features to sparse rows if few entries are non-zero, as in bags of words."""
    rows, columns = np.nonzero(dense)
    if len(rows) >= SPARSE_BELOW * dense.size:
        return dense.astype(np.float32, copy=False)
    indptr = np.searchsorted(rows, np.arange(len(dense) + 1))
    return SparseRows(indptr, columns, dense[rows, columns].astype(np.float32), dense.shape[1])
