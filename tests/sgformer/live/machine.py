"""Random changes of a graph, each compared with the naive forward over the graph rebuilt from a plain record of it.

The property test runs the machine on the package as it is; the mutation tests run it on the package with a defect.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sgformer import Adjacency, ChangingGraph, Draft, Graph, InferenceModel, ModelConfig, NewNodes, SparseRows, summarize
from sgformer.live import layer_states, row_table
from sgformer.live.changes import sums_of
from tests.sgformer.cases import IN_FEATURES, assert_close, configs, graphs, random_weights, sparsified
from tests.sgformer.naive import Singular, dense_features, naive_forward

SEEDS = st.integers(0, 2**32 - 1)


@dataclass
class Record:
    """What the graph should hold: features by row, and edges as pairs (smaller, larger)."""

    features: dict[int, np.ndarray]
    edges: set[tuple[int, int]]
    gone: list[tuple[np.ndarray, list[int]]] = field(default_factory=list)
    """Features and neighbours of removed nodes."""

    @classmethod
    def of(cls, graph: Graph) -> Record:
        edges = {(int(a), int(b)) for a, b in graph.adjacency.edge_index().T if a < b}
        return cls(dict(enumerate(dense_features(graph))), edges)

    def neighbors(self, row: int) -> list[int]:
        return [a + b - row for a, b in self.edges if row in (a, b)]

    def remove(self, row: int) -> None:
        self.gone.append((self.features.pop(row), self.neighbors(row)))
        self.edges = {edge for edge in self.edges if row not in edge}

    def graph(self, extra: tuple[np.ndarray, ...] = (), extra_edges: tuple[tuple[int, int], ...] = ()) -> Graph:
        """The graph rebuilt from scratch. Extra nodes come last; in their edges, -1 is the first of them."""
        numbers = {row: number for number, row in enumerate(sorted(self.features))}
        numbers |= {-1 - place: len(numbers) + place for place in range(len(extra))}
        edges = [(numbers[a], numbers[b]) for a, b in (*self.edges, *extra_edges)]
        features = np.array([*(self.features[row] for row in sorted(self.features)), *extra]).reshape(-1, IN_FEATURES)
        return Graph(features, Adjacency.from_edges(np.array(edges, dtype=np.int64).reshape(-1, 2).T, len(features)))


class LiveGraphMachine(RuleBasedStateMachine):
    """A draft collects changes. The graph, and the draft as a what-if, are compared with records of both."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(graph=graphs(), config=configs(), seed=SEEDS, push_degree=st.sampled_from([0, 2, 1024]), small=st.booleans())
    def open(self, graph: Graph, config: ModelConfig, seed: int, push_degree: int, small: bool) -> None:
        self.patch.setattr(layer_states, "PUSH_DEGREE", push_degree)
        if small:
            self.patch.setattr(layer_states, "BLOCK_ENTRIES", 3)
            self.patch.setattr(layer_states, "MAX_UPDATED_ROWS", 3)
            self.patch.setattr(row_table, "SPARE_ROWS", 1)
        self.config, self.weights = config, random_weights(config, seed)
        summary = summarize(config, self.weights, graph, dtype=np.float64)
        self.model = InferenceModel(config, self.weights, np.float64)
        self.live = ChangingGraph(self.model, summary.states, summary.sums, graph.adjacency)
        self.record = Record.of(graph)
        self.start_draft()

    def start_draft(self) -> None:
        self.draft: Draft = self.live.draft()
        self.drafted = deepcopy(self.record)

    @rule(seed=SEEDS, sparse=st.booleans(), share=st.sampled_from([0.0, 0.2, 1.0]))
    def add_node(self, seed: int, sparse: bool, share: float) -> None:
        """With a share of 1 it is a hub."""
        rng = np.random.default_rng(seed)
        neighbors = [row for row in self.drafted.features if rng.random() < share]
        self.add(random_features(rng, sparse), neighbors)

    @precondition(lambda self: self.drafted.gone)
    @rule()
    def add_again(self) -> None:
        features, neighbors = self.drafted.gone.pop()
        self.add(features[None], [row for row in neighbors if row in self.drafted.features])

    def add(self, features: Any, neighbors: list[int]) -> None:
        half = len(neighbors) // 2
        row = self.draft.add_node(features, neighbors[:half])
        self.drafted.features[row] = as_dense(features)
        self.drafted.edges |= {(neighbor, row) for neighbor in neighbors}
        for neighbor in neighbors[half:]:
            assert self.draft.add_edge(row, neighbor)
        assert not any(self.draft.add_edge(row, neighbor) for neighbor in neighbors[:half])

    @precondition(lambda self: self.drafted.features)
    @rule(seed=SEEDS, hub=st.booleans())
    def remove_node(self, seed: int, hub: bool) -> None:
        row = pick(self.drafted, seed)
        if hub:
            row = max(self.drafted.features, key=lambda row: len(self.drafted.neighbors(row)))
        self.draft.remove_node(row)
        self.drafted.remove(row)
        assert not self.draft.has_node(row)

    @precondition(lambda self: self.drafted.features)
    @rule(seed=SEEDS, sparse=st.booleans())
    def set_features(self, seed: int, sparse: bool) -> None:
        row, features = pick(self.drafted, seed), random_features(np.random.default_rng(seed), sparse)
        self.draft.set_features(row, features)
        self.drafted.features[row] = as_dense(features)

    @precondition(lambda self: len(self.drafted.features) > 1)
    @rule(seed=SEEDS, count=st.integers(1, 6))
    def flip_edges(self, seed: int, count: int) -> None:
        """Adds edges that do not exist, and removes edges that do."""
        rng = np.random.default_rng(seed)
        for _ in range(count):
            left, right = (int(row) for row in rng.choice(sorted(self.drafted.features), 2, replace=False))
            edge = (min(left, right), max(left, right))
            exists = edge in self.drafted.edges
            assert self.draft.has_edge(left, right) is exists
            assert self.draft.add_edge(left, right) is not exists
            assert not self.draft.add_edge(right, left)
            if exists:
                assert self.draft.remove_edge(right, left)
                assert not self.draft.remove_edge(left, right)
            self.drafted.edges ^= {edge}

    @precondition(lambda self: self.drafted.edges)
    @rule(seed=SEEDS)
    def remove_edge(self, seed: int) -> None:
        edges = sorted(self.drafted.edges)
        edge = edges[seed % len(edges)]
        assert self.draft.remove_edge(*edge)
        self.drafted.edges.remove(edge)

    @rule(seed=SEEDS)
    def check_what_if(self, seed: int) -> None:
        self.check(self.live.what_if(self.draft.changes()), self.drafted, seed)
        self.check(self.live, self.record, seed)

    @rule(seed=SEEDS, read=st.booleans())
    def commit(self, seed: int, read: bool) -> None:
        """Several commits may come before a read."""
        self.live.apply(self.draft.changes())
        self.record = self.drafted
        self.start_draft()
        if read:
            self.check(self.live, self.record, seed)

    def check(self, graph: ChangingGraph, record: Record, seed: int) -> None:
        rng, rows = np.random.default_rng(seed), np.array(sorted(record.features), dtype=np.int64)
        assert (graph.num_nodes, graph.adjacency.num_edges) == (len(rows), len(record.edges))
        self.check_sums(graph, record)
        if len(rows):
            expected = self.expected(record.graph())
            asked = rng.permutation(np.concatenate([np.arange(len(rows))[rng.random(len(rows)) < 0.7], [0, 0]]))
            if expected is not None:
                answers = graph.known(rows[asked])
                assert_close(answers.embeddings, expected[0][asked])
                assert_close(answers.logits, expected[1][asked])
        self.check_new_nodes(graph, record, rng, joint=bool(rng.random() < 0.5))

    def check_sums(self, graph: ChangingGraph, record: Record) -> None:
        """Also where the attention hides in the rounding (docs/mathematics.md, trap 1)."""
        expected = sums_of(self.model, self.model.inputs(record.graph().features)[0])
        assert graph.sums.count == expected.count
        for name in ("key_value", "key", "query_square", "key_square"):
            assert_close(getattr(graph.sums, name), np.asarray(getattr(expected, name)))

    def check_new_nodes(self, graph: ChangingGraph, record: Record, rng: np.random.Generator, joint: bool) -> None:
        features = rng.normal(size=(2, IN_FEATURES))
        lists = [[row for row in record.features if rng.random() < share] for share in (0.3, rng.random())]
        new = NewNodes.build(
            features,
            lists,
            num_nodes=graph.adjacency.num_nodes,
            num_features=IN_FEATURES,
            joint=joint,
            edges=[(0, 1)] if joint else [],
        )
        if joint:
            edges = [(-1 - place, row) for place, rows in enumerate(lists) for row in rows]
            groups = [record.graph(tuple(features), ((-1, -2), *edges))]
        else:
            groups = [
                record.graph((row,), tuple((-1, neighbor) for neighbor in rows))
                for row, rows in zip(features, lists, strict=True)
            ]
        expected = [self.expected(group) for group in groups]
        if all(part is not None for part in expected):
            logits = np.concatenate([part[1][-2 // len(groups) :] for part in expected if part is not None])
            assert_close(graph.extended(new).logits, logits)

    def expected(self, graph: Graph) -> tuple[np.ndarray, np.ndarray] | None:
        """The answers of the naive forward; None if the model has none."""
        try:
            return naive_forward(self.config, self.weights, graph)
        except Singular:
            return None


def pick(record: Record, seed: int) -> int:
    rows = sorted(record.features)
    return rows[seed % len(rows)]


def random_features(rng: np.random.Generator, sparse: bool) -> Any:
    features = rng.normal(size=(1, IN_FEATURES))
    return sparsified(features, rng) if sparse else features


def as_dense(features: Any) -> np.ndarray:
    return (features.toarray() if isinstance(features, SparseRows) else features)[0]
