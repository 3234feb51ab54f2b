"""The new nodes of a question as arrays: features in any of their three forms, and the rows of their neighbours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.errors import Refusal
from service.node_features import checked_features
from service.predict.questions import NewNode, Question
from service.request_fields import NodeId, SparseFeatures
from sgformer import NewNodes, SparseRows, UnknownNodeError
from sgformer.features import MixedRows


def new_nodes(model: ServedModel, question: Question) -> NewNodes:
    """Raises Refusal, which names the new node by its id, and NewNodeError, which has its position."""
    nodes = question.new_nodes
    positions = {node.id: position for position, node in enumerate(nodes)}
    return NewNodes.build(
        _features(model, question),
        _neighbors(model, nodes),  # type: ignore[arg-type]  # arrays of ints, not lists
        num_nodes=model.num_rows,
        num_features=model.config.in_features,
        edges=[(positions[left], positions[right]) for left, right in question.edges],
        joint=question.joint,
    )


def _neighbors(model: ServedModel, nodes: Sequence[NewNode]) -> list[NDArray[np.int64]]:
    flat = [neighbor for node in nodes for neighbor in node.neighbors]
    try:
        rows = model.rows(flat) if flat else np.empty(0, dtype=np.int64)
    except UnknownNodeError as error:
        owner = next(node.id for node in nodes if error.node in node.neighbors)
        message = f"new node {owner!r} has an unknown neighbour: {error}"
        raise Refusal("unknown_node", message, node=error.node, new_node=owner) from None
    ends = list(accumulate(len(node.neighbors) for node in nodes))
    return [rows[end - len(node.neighbors) : end] for node, end in zip(nodes, ends, strict=True)]


def _features(model: ServedModel, question: Question) -> object:
    """Dense rows, sparse rows, or both. Each node keeps the form of its request, so that its answer has the same bits in any
    batch.
    """
    among_new = _neighbors_among_new(question) if model.structural and question.edges else {}
    rows = [_checked(model, node, among_new.get(node.id, ())) for node in question.new_nodes]
    is_sparse = [isinstance(row, SparseFeatures) for row in rows]
    if True not in is_sparse:
        return np.array(rows, dtype=np.float64)
    indptr, indices, values = [0], [], []
    for row in rows:
        if isinstance(row, SparseFeatures):
            entries = sorted(zip(row.indices, row.values, strict=True))
            indices += [index for index, _ in entries]
            values += [value for _, value in entries]
            indptr.append(len(indices))
    width = model.config.in_features
    sparse = SparseRows(np.array(indptr), np.array(indices, dtype=np.int64), np.array(values, dtype=np.float64), width)
    dense = [row for row in rows if not isinstance(row, SparseFeatures)]
    return MixedRows(np.array(dense, dtype=np.float64), sparse, np.array(is_sparse)) if dense else sparse


def _neighbors_among_new(question: Question) -> dict[NodeId, set[NodeId]]:
    """The other new nodes that are neighbours of each new node."""
    neighbors = defaultdict(set)
    for edge in question.edges:
        for end, other in (edge, edge[::-1]):
            if end != other:
                neighbors[end].add(other)
    return neighbors


def _checked(model: ServedModel, node: NewNode, new_neighbors: Collection[NodeId]) -> Any:
    """The features of a node. `new_neighbors`: other new nodes that are its neighbours."""
    features: Any = node.features
    if isinstance(features, Refusal):  # `parse_question` found the node invalid
        raise features
    neighbors = [*set(node.neighbors), *new_neighbors] if model.structural else None
    return checked_features(model, features, f"new node {node.id!r}", neighbors, node=node.id)
