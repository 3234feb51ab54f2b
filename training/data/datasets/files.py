"""What the loaders of published data sets share."""

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
"""Share of non-zero entries under which features are kept sparse."""


def found(path: Path) -> Path:
    """The path, or an error that says where it was looked for."""
    if not path.exists():
        raise DataError(f"{path} is not there: set SGF_DATA_ROOT to the folder that holds the data sets")
    return path


def read(path: Path) -> dict[str, NDArray[Any]]:
    return read_arrays(found(path), None)


def as_features(dense: NDArray[Any]) -> FeatureRows:
    """Sparse where that is what they are: bags of words are a hundredth full."""
    rows, columns = np.nonzero(dense)
    if len(rows) >= SPARSE_BELOW * dense.size:
        return dense.astype(np.float32, copy=False)
    indptr = np.searchsorted(rows, np.arange(len(dense) + 1))
    return SparseRows(indptr, columns, dense[rows, columns].astype(np.float32), dense.shape[1])
