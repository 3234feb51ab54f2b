"""The features of operations as rows: read and checked for many operations at once, because a numpy call per row is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from model_store.errors import OperationError
from model_store.live_graph.operations import Features, NodeId, Operation, feature_rows
from sgformer.features import FeatureRows

LARGEST = float(np.finfo(np.float32).max)
Prepared = FeatureRows | OperationError | None
"""The features of an operation as one row, or what is wrong with them; None if the operation has no features."""


def prepare_features(
    operations: Sequence[Operation], width: int, are_too_large: Callable[[Sequence[FeatureRows]], NDArray[np.bool_]] | None
) -> list[Prepared]:
    """The features of each operation.

    Args:
        are_too_large: says which rows lie too far from the features of the graph. None for logged operations: the limit
            depends on the weights, and a later version has other weights.
    """
    prepared: list[Prepared] = [None] * len(operations)
    places = [place for place, operation in enumerate(operations) if operation.op in ("add_node", "set_features")]
    for place, rows in zip(places, _rows([operations[place] for place in places], width), strict=True):
        prepared[place] = rows
    valid = {place: rows for place, rows in enumerate(prepared) if rows is not None and not isinstance(rows, OperationError)}
    if are_too_large is not None and valid:
        for place in np.array(list(valid))[are_too_large(list(valid.values()))].tolist():
            node = operations[place].id
            message = f"the features of node {node!r} are too large for the model"
            prepared[place] = OperationError("invalid", message, node=node)
    return prepared


@contextmanager
def invalid_values(node: NodeId) -> Iterator[None]:
    """Turns an error about the values of an operation into an OperationError."""
    try:
        yield
    except ValueError as error:
        raise OperationError("invalid", f"node {node!r}: {error}", node=node) from None


def _rows(operations: Sequence[Operation], width: int) -> list[Prepared]:
    block = _dense_rows([operation.features for operation in operations], width)
    if block is not None:
        return [block[row : row + 1] for row in range(len(block))]
    rows: list[Prepared] = []
    for operation in operations:
        try:
            with invalid_values(operation.id):
                rows.append(feature_rows(operation.features, width))
        except OperationError as error:
            rows.append(error)
    return rows


def _dense_rows(features: Sequence[Features], width: int) -> NDArray[np.float64] | None:
    """The features of all operations as an array, if all of them are lists of numbers that `feature_rows` accepts."""
    if any(type(row) is not list or len(row) != width for row in features):
        return None
    rows = np.array(features, dtype=np.float64).reshape(-1, width)
    return rows if (np.abs(rows) <= LARGEST).all() else None
