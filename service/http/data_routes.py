"""The routes that read the data of the served version: its nodes, classes and features. The model computes nothing here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathParameter
from numpy.typing import NDArray

from model_store.live_graph.operations import feature_rows
from service.engines.served_model import ServedModel
from service.rollout.rollout import Rollout
from sgformer import SparseRows
from sgformer.arrays.operations import run_starts
from sgformer_client.answers import ClassesAnswer, FeaturesAnswer, NodeAnswer, NodesAnswer

DEFAULT_NEIGHBORS, MAX_NEIGHBORS = 100, 10_000
MAX_LISTED, MAX_LISTED_VALUES = 200, 50_000
"""Most nodes, and most feature values, in a list of nodes: the event loop reads and encodes them."""
SPLITS = "train", "validation", "test"
NodeText = Annotated[str, PathParameter(description="a node of the graph; percent-encode what a path cannot hold")]
Limit = Annotated[int, Query(ge=0, le=MAX_NEIGHBORS, description="how many neighbours to list")]
Start = Annotated[int, Query(ge=0, lt=2**63, description="0, or `next` of the previous list")]
Listed = Annotated[int, Query(ge=1, le=MAX_LISTED, description="most nodes to list; fewer if they have many features")]


def data_routes(rollout: Rollout) -> APIRouter:
    router = APIRouter(tags=["data"])

    async def acquire() -> AsyncIterator[ServedModel]:
        model = rollout.current().acquire()
        try:
            yield model
        finally:
            model.release()

    served: Any = Depends(acquire)

    about = "A node of the graph: features, neighbours, label, split."

    @router.get("/nodes/{node_id:path}", summary=about, response_model_exclude_unset=True)
    async def node(node_id: NodeText, limit: Limit = DEFAULT_NEIGHBORS, model: ServedModel = served) -> NodeAnswer:
        return describe_node(model, model.node_id(node_id), limit)

    about = "The nodes of the graph, in its order: features, label, split, without their neighbours."

    @router.get("/nodes", summary=about, response_model_exclude_unset=True)
    async def nodes(start: Start = 0, limit: Listed = MAX_LISTED, model: ServedModel = served) -> NodesAnswer:
        return await list_nodes(model, start, limit)

    @router.get("/classes", summary="The classes of the model.")
    async def classes(model: ServedModel = served) -> ClassesAnswer:
        return describe_classes(model)

    about = "The features of the model: their names, or their number."

    @router.get("/features", summary=about, response_model_exclude_unset=True)
    async def features(model: ServedModel = served) -> FeaturesAnswer:
        return describe_features(model)

    return router


def describe_node(model: ServedModel, node: int | str, limit: int) -> NodeAnswer:
    """A node of the graph as it is now. Called on the event loop, which also changes the graph. Raises UnknownNodeError."""
    snapshot, live, row = model.snapshot, model.live, int(model.rows([node])[0])
    neighbors = model.adjacency.neighbors(np.array([row]))
    parts: dict[str, Any] = {}
    is_stored = row < snapshot.states.num_nodes
    changed = live.features(row)
    if changed is not None:
        parts["features"] = _features(model, feature_rows(changed, model.config.in_features))
    elif is_stored and (features := snapshot.raw_features(np.array([row]))) is not None:
        parts["features"] = _features(model, features)
    label = live.label(row)
    if snapshot.labels is not None or label is not None:
        parts |= _LABELS[model.config.task](model, label)
    if snapshot.split is not None:
        split = int(snapshot.split[row]) if is_stored else -1
        parts["split"] = None if split < 0 else SPLITS[split]
    if (added := live.time(row)) is not None:
        parts["added"] = datetime.fromtimestamp(added, UTC).isoformat(timespec="milliseconds")
    parts |= {"node": node, "degree": len(neighbors), "neighbors": model.names(neighbors[:limit])}
    return NodeAnswer.model_validate(model.origin_at(model.sequence) | parts)


async def list_nodes(model: ServedModel, start: int, limit: int) -> NodesAnswer:
    """The nodes from row `start` on. Other requests run between two nodes; a node that they remove is left out."""
    limit = min(limit, max(1, MAX_LISTED_VALUES // model.config.in_features))
    end = min(start + limit, model.num_rows)
    nodes = []
    for row in range(start, end):
        if not model.live.graph.adjacency.is_removed(np.array([row]))[0]:
            described = describe_node(model, model.names(np.array([row]))[0], 0)
            nodes.append(
                described.model_dump(by_alias=True, exclude_unset=True, exclude={*model.origin, "sequence", "neighbors"})
            )
        await asyncio.sleep(0)
    listed = {"nodes": nodes, "next": end if end < model.num_rows else None}
    return NodesAnswer.model_validate(model.origin_at(model.sequence) | listed)


def describe_classes(model: ServedModel) -> ClassesAnswer:
    names = () if model.config.task == "regression" else model.class_names
    classes = [{"label": label, "class": name} for label, name in enumerate(names)]
    return ClassesAnswer.model_validate(model.origin | {"task": model.config.task, "classes": classes})


def describe_features(model: ServedModel) -> FeaturesAnswer:
    config, names = model.config, None
    if model.schema is not None:
        widths = [column.width for column in model.schema.columns]
        columns = zip(model.schema.to_json(), run_starts(np.array(widths)).tolist(), widths, strict=True)
        names = [fields | {"position": position, "width": width} for fields, position, width in columns]
    parts = {"width": config.in_features, "transform": config.feature_transform, "features": names}
    return FeaturesAnswer.model_validate(model.origin | parts)


def _features(model: ServedModel, rows: Any) -> Any:
    if model.schema is not None:
        dense = rows.toarray() if isinstance(rows, SparseRows) else rows
        return model.schema.decode(np.array(_shortest(dense[0])))
    if isinstance(rows, SparseRows):
        return {"indices": rows.indices.tolist(), "values": _shortest(rows.values)}
    return _shortest(rows[0])


def _shortest(values: NDArray[Any]) -> list[float]:
    """Each float32 as the shortest decimal number with the same bits: 0.1, not 0.10000000149011612."""
    numbers: list[float] = orjson.loads(orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY))
    return numbers


def _class(model: ServedModel, label: Any) -> dict[str, Any]:
    return {"label": label, "class": None if label is None else model.class_names[label]}


def _labels(model: ServedModel, applies: Any) -> dict[str, Any]:
    known = any(value is not None for value in applies or ())
    labels = [label for label, value in enumerate(applies) if value == 1] if known else None
    names: Any = None if labels is None else [model.class_names[label] for label in labels]
    return {"labels": labels} if model.classes is None else {"labels": labels, "classes": names}


def _value(_model: ServedModel, value: Any) -> dict[str, Any]:
    values = value if isinstance(value, list) else [value]
    numbers = _shortest(np.array(values, dtype=np.float32))  # NaN, a value that is not known, becomes None
    return {"value": numbers[0] if len(numbers) == 1 else numbers}


_LABELS = {"multiclass": _class, "multilabel": _labels, "regression": _value}
