"""The live graph of a model as training data: the raw data of the live version with the changes of its log.

Nodes keep the part of the split that they had. A node whose label came with a change gets a part by the hash of its id, by
the rule of `splits.steady_split`: the part is the same in every later version.
"""

from __future__ import annotations

import numpy as np

from model_store import DataError
from model_store.live_graph.current_data import CurrentData
from training.data.labelled import UNUSED, LabelledGraph, is_labelled
from training.data.splits import HALF, describe_rule, parse_rule, parts_by_rule


def label_live_graph(data: CurrentData, metric: str) -> LabelledGraph:
    """Raises DataError if no node has a label."""
    manifest, config = data.manifest, data.manifest.config
    if data.labels is None:
        raise DataError("the live graph has no labels: neither the live version nor the changes since have any")
    drawn = manifest.training.get("split")
    undecided = data.newly_labelled
    if (data.split == UNUSED).all():
        undecided = is_labelled(data.labels, config.task)
        drawn = drawn or describe_rule(HALF, 0, by_id=data.node_ids is not None)
    shares, seed = parse_rule(drawn) or (HALF, 0)
    split, rows = data.split.copy(), np.flatnonzero(undecided)
    split[rows] = parts_by_rule(rows if data.node_ids is None else data.node_ids.arrays[0][rows], seed, shares)
    names = manifest.dataset.get("features")
    return LabelledGraph(
        name=str(manifest.dataset.get("name", manifest.model)),
        graph=data.graph,
        labels=data.labels,
        split=split,
        task=config.task,
        metric=metric,
        class_names=manifest.classes,
        node_ids=data.node_ids,
        feature_names=tuple(names) if names else None,
        drawn=drawn,
        schema=manifest.features,
        reading=manifest.reading,
        live=data.position,
        classes=config.out_features,
    )
