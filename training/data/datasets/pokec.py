"""pokec, a Slovak social network, in SNAP's layout: tab-separated text, optionally with .gz. The label is gender.

soc-pokec-profiles.txt has 59 columns: user, public, completion, gender, region, login, registration, age, and texts.
soc-pokec-relationships.txt has two: both users.
"""

from __future__ import annotations

from csv import QUOTE_NONE
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store import DataError, NodeIds
from sgformer import Graph
from training.data.datasets.files import required
from training.data.labelled import LabelledGraph
from training.data.splits import random_split

COLUMNS = {"user": 0, "public": 1, "completion": 2, "gender": 3, "age": 7}
FEATURES = ("public", "completion", "age")


def load(root: Path, _split: int, seed: int) -> LabelledGraph:
    profiles = _columns(root / "pokec" / "soc-pokec-profiles.txt", list(COLUMNS.values()))
    edges = _columns(root / "pokec" / "soc-pokec-relationships.txt", [0, 1])
    table = dict(zip(COLUMNS, profiles.T, strict=True))
    users = table["user"].astype(np.int64)
    features = np.stack([np.nan_to_num(table[name]) for name in FEATURES], axis=1).astype(np.float32)
    labels = np.where(np.isnan(table["gender"]), -1, np.nan_to_num(table["gender"])).astype(np.int64)
    graph = Graph.build(features, np.stack([_rows(users, end) for end in edges.T]))
    split = random_split(labels >= 0, seed)
    return LabelledGraph("pokec", graph, labels, split, class_names=("female", "male"), node_ids=NodeIds.build(users))


def _columns(path: Path, numbers: list[int]) -> NDArray[np.float64]:
    """Reads columns of numbers, with NaN for `null`."""
    import pandas

    compressed = path.with_name(f"{path.name}.gz")
    source = compressed if compressed.exists() else required(path)
    frame = pandas.read_csv(source, sep="\t", header=None, usecols=numbers, na_values=["null"], quoting=QUOTE_NONE)
    return np.asarray(frame[numbers].to_numpy(dtype=np.float64))


def _rows(users: NDArray[np.int64], friends: NDArray[np.float64]) -> NDArray[np.int64]:
    order = np.argsort(users)
    places = np.minimum(np.searchsorted(users, friends, sorter=order), len(users) - 1)
    rows = order[places]
    if (unknown := users[rows] != friends).any():
        raise DataError(f"pokec: user {int(friends[np.argmax(unknown)])} has friends but no profile")
    return rows
