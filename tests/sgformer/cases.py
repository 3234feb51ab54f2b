"""Random models, graphs and requests, drawn by hypothesis, and the check of exactness.

The property tests call `check_new_nodes` on the package as it is; the mutation tests call it on the package with a defect,
which it must detect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from sgformer import Graph, InferenceModel, ModelConfig, NewNodes, SparseRows, extend, summarize
from sgformer.weights import expected_shapes
from tests.sgformer.naive import Singular, naive_forward

TOLERANCE = 1e-10
IN_FEATURES = 5


def random_weights(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Weights of order 1, with norms that differ from their initial values, so that a skipped norm is detected."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        values = rng.normal(size=shape)
        weights[name] = np.abs(values) + 0.5 if name.endswith(("running_var", "feature_scale")) else values
    return weights


@dataclass(frozen=True)
class Request:
    """The arguments of `NewNodes.build`: features, lists of known neighbours, edges between new nodes."""

    features: np.ndarray
    neighbors: list[list[int]]
    edges: list[tuple[int, int]]
    joint: bool


@dataclass(frozen=True)
class Case:
    config: ModelConfig
    seed: int
    graph: Graph
    request: Request

    def weights(self) -> dict[str, np.ndarray]:
        return random_weights(self.config, self.seed)


@st.composite
def configs(draw: Any, **fixed: Any) -> ModelConfig:
    gnn_input = fixed.get("gnn_input") or draw(st.sampled_from(["shared", "own", "features"]))
    features = gnn_input == "features"
    weight = features or draw(st.booleans())
    residual = draw(st.sampled_from(["none", "layer"] if features else ["none", "input", "init", "both", "layer"]))
    norm = draw(st.sampled_from(["none", "batch", "layer"]))
    values = {
        "in_features": IN_FEATURES,
        "out_features": draw(st.integers(1, 4)),
        "hidden": draw(st.integers(1, 6)),
        "heads": draw(st.integers(1, 4)),
        "layers": draw(st.integers(1 if features else 0, 5)),
        "alpha": draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])),
        "normalization": draw(st.sampled_from(["frobenius", "row"])),
        "gnn_input": gnn_input,
        "value_map": draw(st.booleans()),
        "qkv_bias": draw(st.booleans()),
        "attention_residual": draw(st.sampled_from([None, 0.5, 0.9, 1.0])),
        "input_layer_norm": draw(st.booleans()),
        "attention_layer_norm": draw(st.booleans()),
        "attention_activation": draw(st.booleans()),
        "gnn_weight": weight,
        "gnn_batch_norm": norm == "batch",
        "gnn_layer_norm": norm == "layer",
        "gnn_activation": draw(st.booleans()),
        "gnn_residual": residual in ("input", "both"),
        "gnn_layer_residual": residual == "layer",
        "gnn_init": weight and residual in ("init", "both"),
        "gnn_plain_last": draw(st.booleans()),
        "combine": draw(st.sampled_from(["add", "cat"])),
        "feature_transform": draw(st.sampled_from(["none", "row", "standard"])),
        "task": draw(st.sampled_from(["multiclass", "multilabel", "regression"])),
    }
    return ModelConfig(**(values | fixed))


@st.composite
def graphs(draw: Any, sparse: bool | None = None) -> Graph:
    """2 to 24 nodes of any density, often with a hub. The input has repeated edges, self-loops and both directions."""
    count = draw(st.integers(2, 24))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    edges = rng.integers(0, count, size=(2, draw(st.integers(0, 3 * count))))
    if draw(st.booleans()):
        hub = np.arange(0, count, draw(st.integers(1, 2)))
        edges = np.concatenate([edges, np.stack([hub, np.zeros_like(hub)])], axis=1)
    edges = np.concatenate([edges, edges[:, :3]], axis=1)
    features = rng.normal(size=(count, IN_FEATURES))
    return Graph.build(sparsified(features, rng) if draw_bool(draw, sparse) else features, edges)


def draw_bool(draw: Any, fixed: bool | None) -> bool:
    return bool(draw(st.booleans())) if fixed is None else fixed


def sparsified(features: np.ndarray, rng: np.random.Generator) -> SparseRows:
    kept = rng.random(features.shape) < 0.4
    indptr = np.append(0, np.cumsum(kept.sum(axis=1)))
    return SparseRows(indptr, np.nonzero(kept)[1], features[kept], features.shape[1])


@st.composite
def requests(draw: Any, graph: Graph) -> Request:
    count = draw(st.integers(1, 4))
    known = st.integers(0, graph.num_nodes - 1)
    neighbors = draw(st.lists(st.lists(known, max_size=6), min_size=count, max_size=count))
    joint = draw(st.booleans())
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    edges = draw(st.lists(pairs, max_size=4)) if joint and count > 1 else []
    features = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=(count, IN_FEATURES))
    return Request(features, neighbors, edges, joint)


@st.composite
def cases(draw: Any, **fixed: Any) -> Case:
    graph = draw(graphs())
    return Case(draw(configs(**fixed)), draw(st.integers(0, 1000)), graph, draw(requests(graph)))


def as_new_nodes(graph: Graph, request: Request) -> NewNodes:
    features: Any = request.features
    if isinstance(graph.features, SparseRows):
        features = sparsified(features, np.random.default_rng(0))
    return NewNodes.build(
        features,
        request.neighbors,
        edges=request.edges,
        joint=request.joint,
        num_nodes=graph.num_nodes,
        num_features=graph.num_features,
    )


def augmented(graph: Graph, new: NewNodes, request: Request, members: list[int]) -> Graph:
    """The graph with these new nodes, for a full recompute."""
    rows = new.features
    if isinstance(rows, SparseRows):
        dense = rows.toarray()[members]
        added: Any = SparseRows(
            np.append(0, np.cumsum((dense != 0).sum(axis=1))), np.nonzero(dense)[1], dense[dense != 0], rows.width
        )
    else:
        added = rows[members]
    edges = [(graph.num_nodes + place, to) for place, item in enumerate(members) for to in request.neighbors[item]]
    if request.joint:
        edges += [(graph.num_nodes + a, graph.num_nodes + b) for a, b in request.edges]
    return graph.with_nodes(added, np.array(edges, dtype=np.int64).reshape(-1, 2).T)


def expected_new_nodes(case: Case, new: NewNodes) -> tuple[np.ndarray, np.ndarray]:
    """The answers of the naive full recompute: on one graph for joint nodes, on a graph each for independent nodes."""
    count = len(new)
    groups = [list(range(count))] if case.request.joint else [[item] for item in range(count)]
    embeddings, logits = [], []
    for members in groups:
        graph = augmented(case.graph, new, case.request, members)
        all_embeddings, all_logits = oracle(case, graph)
        embeddings.append(all_embeddings[-len(members) :])
        logits.append(all_logits[-len(members) :])
    return np.concatenate(embeddings), np.concatenate(logits)


def oracle(case: Case, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The naive forward. Rejects a case for which the model has no answer."""
    try:
        return naive_forward(case.config, case.weights(), graph)
    except Singular:
        reject()


def check_new_nodes(case: Case, place: Any = None) -> None:
    """Exact answers equal the naive full recompute, with a relative error of at most 1e-10."""
    new = as_new_nodes(case.graph, case.request)
    embeddings, logits = expected_new_nodes(case, new)
    summary = summarize(case.config, case.weights(), case.graph, dtype=np.float64, chunk_rows=7)
    options = {} if place is None else {"place": place}
    model = InferenceModel(case.config, case.weights(), np.float64, **options)
    answers = extend(model, summary.states, summary.sums, case.graph.adjacency, new)
    assert answers.exactness == "exact"
    assert_close(answers.embeddings, embeddings)
    assert_close(answers.logits, logits)


def assert_close(actual: Any, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    worst = np.abs(actual - expected).max(initial=0) / max(1.0, np.abs(expected).max(initial=0))
    assert worst <= tolerance, f"off by {worst:.2e}, allowed {tolerance:.0e}"
