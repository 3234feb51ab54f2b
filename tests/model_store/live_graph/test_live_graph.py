"""A snapshot's graph after changes by id, against a full forward over the graph rebuilt from scratch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from model_store import Contents, NodeIds, Snapshot, Store
from model_store.errors import OperationError
from model_store.graph_log.file_log import FileLog
from model_store.live_graph.live_graph import ChangeRequest, LiveGraph
from model_store.live_graph.operations import Change, Operation
from sgformer import Graph, UnknownNodeError
from sgformer.full_graph.forward import full_logits
from tests.model_store.samples import FEATURES, NODES, small_contents, small_graph, small_labels

NAMES = [f"n{row}" for row in range(NODES)]


@pytest.fixture(scope="module", params=["rows", "names"])
def snapshot(request, tmp_path_factory) -> Iterator[Snapshot]:
    """One whose ids are row numbers, and one whose ids are strings."""
    store = Store(tmp_path_factory.mktemp("store"))
    ids = {"node_ids": NodeIds.build(NAMES)} if request.param == "names" else {}
    store.publish("demo", small_contents(1, **small_labels(), **ids), onnx=False, activate=True)
    with store.model("demo").open() as opened:
        yield opened


@pytest.fixture
def live(snapshot: Snapshot) -> LiveGraph:
    return LiveGraph(snapshot)


@pytest.fixture
def log(tmp_path) -> Iterator[FileLog]:
    opened = FileLog(tmp_path / "log")
    yield opened
    opened.close()


def named(live: LiveGraph, number: int) -> int | str:
    return f"n{number}" if live.snapshot.has_text_ids else number


def features(seed: int) -> list[float]:
    return np.random.default_rng(seed).normal(size=FEATURES).tolist()


def commit(live: LiveGraph, log: FileLog, *operations: Operation, upsert: bool = False) -> Change:
    plan = live.plan([ChangeRequest(operations, upsert)])
    (change,) = plan.changes
    if isinstance(change, OperationError):
        raise change
    with log.writer(timeout=5) as writer:
        records = writer.append([("", change.to_payload())], expected=live.position.sequence)
    live.apply(plan.pending, records)
    return change


class Rebuilt:
    """The graph as dictionaries by id: the oracle."""

    def __init__(self, live: LiveGraph) -> None:
        graph = small_graph(1)
        self.features = {named(live, row): graph.features[row] for row in range(NODES)}
        edges = graph.adjacency.edge_index().T.tolist()
        self.edges = {frozenset((named(live, left), named(live, right))) for left, right in edges}

    def apply(self, operation: Operation) -> None:
        if operation.op in ("add_node", "set_features"):
            self.features[operation.id] = np.array(operation.features, dtype=np.float32)
            self.edges |= {frozenset((operation.id, other)) for other in operation.neighbors}
        elif operation.op == "remove_node":
            del self.features[operation.id]
            self.edges = {edge for edge in self.edges if operation.id not in edge}
        elif operation.op == "add_edge":
            self.edges.add(frozenset((operation.source, operation.target)))
        else:
            self.edges.remove(frozenset((operation.source, operation.target)))

    def logits(self, contents: Contents) -> dict[int | str, np.ndarray]:
        rows = {node: row for row, node in enumerate(self.features)}
        edges = np.array([[rows[node] for node in edge] for edge in self.edges]).T
        graph = Graph.build(np.array(list(self.features.values())), edges)
        return dict(zip(rows, full_logits(contents.config, contents.weights, graph), strict=True))


def assert_equal_to(live: LiveGraph, rebuilt: Rebuilt) -> None:
    expected = rebuilt.logits(small_contents(1))
    answers = live.graph.known(live.rows(list(expected)))
    np.testing.assert_allclose(answers.logits, np.array(list(expected.values())), atol=2e-6)
    assert live.num_nodes == len(expected)
    assert live.num_edges == len(rebuilt.edges)


def random_operation(rng: np.random.Generator, live: LiveGraph, rebuilt: Rebuilt) -> Operation:
    nodes = list(rebuilt.features)
    left, right = (nodes[place] for place in rng.choice(len(nodes), 2, replace=False))
    kind = rng.choice(["add_node", "set_features", "remove_node", "edge", "edge"])
    if kind == "add_node":
        free = [named(live, number) for number in range(NODES + 30) if named(live, number) not in rebuilt.features]
        return Operation("add_node", free[rng.integers(len(free))], features(rng.integers(99)), (left, right, left))
    if kind == "set_features":
        return Operation("set_features", left, features(rng.integers(99)))
    if kind == "remove_node":
        return Operation("remove_node", left)
    linked = frozenset((left, right)) in rebuilt.edges
    return Operation("remove_edge" if linked else "add_edge", source=left, target=right)


def test_answers_equal_a_full_forward_after_every_commit(live, log):
    rebuilt, rng = Rebuilt(live), np.random.default_rng(7)
    follower = LiveGraph(live.snapshot)
    for _ in range(25):
        operations = []
        for _ in range(rng.integers(1, 5)):
            operations.append(random_operation(rng, live, rebuilt))
            rebuilt.apply(operations[-1])
        commit(live, log, *operations)
        assert_equal_to(live, rebuilt)
    follower.follow(log.read(after=0))
    assert_equal_to(follower, rebuilt)
    assert follower.position == live.position


def test_what_if_equals_the_commit_and_keeps_nothing(live, log):
    operations = [
        Operation("add_node", named(live, 900), features(1), (named(live, 0), named(live, 3))),
        Operation("remove_node", named(live, 5)),
    ]
    graph, pending = live.what_if(operations)
    supposed = graph.known(np.array([pending.rows[named(live, 900)], 0])).logits
    assert not live.is_changed
    assert live.row(named(live, 900)) is None
    commit(live, log, *operations)
    rows = live.rows([named(live, 900), named(live, 0)])
    np.testing.assert_allclose(supposed, live.graph.known(rows).logits, atol=1e-6)


def test_a_bad_request_of_a_group_harms_no_other(live, log):
    first, second = named(live, 900), named(live, 901)
    requests = [
        ChangeRequest([Operation("add_node", first, features(1), (named(live, 1),))]),
        ChangeRequest(
            [Operation("remove_node", named(live, 2)), Operation("add_edge", source=first, target=named(live, 2))]
        ),
        ChangeRequest([Operation("add_node", second, features(2), (first, named(live, 2)))]),
        ChangeRequest([Operation("add_node", second, features(2))]),
    ]
    plan = live.plan(requests)
    assert [isinstance(change, OperationError) for change in plan.changes] == [False, True, False, True]
    assert str(plan.changes[1]) == f"operation 1: node {named(live, 2)!r} is not in the graph"
    payloads = [("", change.to_payload()) for change in plan.changes if isinstance(change, Change)]
    with log.writer(timeout=5) as writer:
        records = writer.append(payloads, expected=0)
    live.apply(plan.pending, records)
    assert live.position.sequence == 2
    assert live.graph.adjacency.neighbors(live.rows([second])).tolist() == live.rows([named(live, 2), first]).tolist()


def test_a_removed_node_is_unknown_and_may_come_again_as_another(live, log):
    node, other = named(live, 4), named(live, 7)
    commit(live, log, Operation("remove_node", node))
    with pytest.raises(UnknownNodeError, match="it was removed"):
        live.rows([other, node])
    commit(live, log, Operation("add_node", node, features(3), (other,), 1))
    assert live.rows([node]).tolist() == [NODES]
    assert live.ids([NODES, 7]) == [node, other]
    assert live.label(NODES) == 1
    commit(live, log, Operation("remove_node", node))
    assert (live.row(node), live.label(NODES), live.features(NODES)) == (None, None, None)


def test_labels_and_features_of_changes_hide_those_of_the_snapshot(live, log):
    node, row = named(live, 3), 3
    assert (live.label(row), live.features(row)) == (0, None)
    commit(live, log, Operation("set_label", node, label=2), Operation("set_features", node, features(8)))
    assert (live.label(row), live.features(row)) == (2, features(8))
    commit(live, log, Operation("set_label", node, label=None))
    assert live.label(row) is None


@pytest.mark.parametrize(
    ("operation", "code", "message"),
    [
        (
            ("add_node", {"id": 3, "features": features(1)}),
            "conflict",
            "node {3} exists already; use set_features, or upsert",
        ),
        (("add_node", {"id": 900, "features": [1.0]}), "invalid", "node {900}: features are 1 wide, expected 5"),
        (
            ("set_features", {"id": 3, "features": [float("nan")] * 5}),
            "invalid",
            "node {3}: features hold NaN, infinity or more than 3.4e38 (row 0, column 0)",
        ),
        (
            ("set_features", {"id": 3, "features": {"indices": [9], "values": [1.0]}}),
            "invalid",
            "node {3}: sparse features: column 9 is out of range, expected 0 to 4",
        ),
        (
            ("add_node", {"id": 900, "features": features(1), "neighbors": (777,)}),
            "unknown_node",
            "node {777} is not in the graph",
        ),
        (
            ("add_node", {"id": 900, "features": features(1), "label": 3}),
            "invalid",
            "node {900}: label 3, expected a class from 0 to 2",
        ),
        (("set_label", {"id": 777, "label": 1}), "unknown_node", "node {777} is not in the graph"),
        (("remove_node", {"id": 777}), "unknown_node", "node {777} is not in the graph"),
        (("add_edge", {"source": 0, "target": 1}), "conflict", "edge {0} - {1} exists already"),
        (("add_edge", {"source": 1, "target": 0}), "conflict", "edge {1} - {0} exists already"),
        (("add_edge", {"source": 1, "target": 1}), "invalid", "an edge from {1} to itself, expected two different nodes"),
        (("remove_edge", {"source": 0, "target": 59}), "conflict", "there is no edge {0} - {59}"),
    ],
)
def test_an_error_names_the_operation(live, operation, code, message):
    kind, fields = operation
    for name in ("id", "source", "target"):
        if name in fields:
            fields = fields | {name: named(live, fields[name])}
    fields = fields | {"neighbors": tuple(named(live, node) for node in fields.get("neighbors", ()))}
    harmless = Operation("set_label", named(live, 9), label=1)
    (error,) = live.plan([ChangeRequest([harmless, Operation(kind, **fields)])]).changes
    assert isinstance(error, OperationError)
    for number in (0, 1, 3, 59, 777, 900):
        message = message.replace(f"{{{number}}}", repr(named(live, number)))
    assert (error.code, str(error)) == (code, f"operation 1: {message}")


def test_an_id_of_the_other_kind_is_refused(live):
    node = 900 if live.snapshot.has_text_ids else "n900"
    (error,) = live.plan([ChangeRequest([Operation("add_node", node, features(1))])]).changes
    expected = "strings of 1 to 256 bytes without NUL" if live.snapshot.has_text_ids else "whole numbers"
    assert str(error) == f"operation 0: node {node!r}: the ids of this graph are {expected}"


def test_the_last_two_nodes_stay(live):
    operations = [Operation("remove_node", named(live, row)) for row in range(NODES)]
    (error,) = live.plan([ChangeRequest(operations)]).changes
    assert str(error) == f"operation 58: node {named(live, 58)!r} cannot be removed: a graph needs at least 2 nodes"


def test_upsert_updates_what_exists_and_skips_what_does_not(live, log):
    node = named(live, 59)
    operations = [
        Operation("add_node", node, features(1), (named(live, 0), named(live, 1)), 2),
        Operation("remove_node", named(live, 777)),
        Operation("add_edge", source=named(live, 0), target=named(live, 1)),
        Operation("remove_edge", source=named(live, 0), target=named(live, 777)),
        Operation("add_edge", source=node, target=named(live, 2)),
    ]
    change = commit(live, log, *operations, upsert=True)
    assert change.skipped == 4
    assert [operation.op for operation in change.operations] == [
        "set_features",
        "set_label",
        "add_edge",
        "add_edge",
        "add_edge",
    ]
    assert Change.from_payload(change.to_payload()) == change
    assert live.graph.adjacency.neighbors(np.array([59])).tolist() == [0, 1, 2]


def test_a_node_that_comes_and_goes_in_one_request_leaves_nothing(live, log):
    before = live.graph.known(np.arange(NODES)).logits
    commit(
        live,
        log,
        Operation("add_node", named(live, 900), features(1), (named(live, 0),)),
        Operation("remove_node", named(live, 900)),
    )
    assert live.row(named(live, 900)) is None
    np.testing.assert_allclose(live.graph.known(np.arange(NODES)).logits, before, atol=1e-6)


def test_features_that_would_decide_all_sums_are_refused(tmp_path):
    store = Store(tmp_path / "store")
    store.publish("demo", small_contents(1, config={"input_layer_norm": False}), onnx=False, activate=True)
    with store.model("demo").open() as snapshot:
        live = LiveGraph(snapshot)
        for size, refused in ((1e3, False), (1e9, True), (3e38, True)):
            request = ChangeRequest([Operation("set_label", 1, label=1), Operation("add_node", 900, [size] * FEATURES)])
            (result,) = live.plan([request]).changes
            assert isinstance(result, OperationError) is refused
        assert str(result) == "operation 1: the features of node 900 are too large for the model"


def test_a_plan_is_freed_without_a_garbage_collection(live: LiveGraph) -> None:
    """A collection of what hundreds of commits leave takes 10 ms, for which all answers wait."""
    plan = live.plan([ChangeRequest([Operation("set_features", named(live, 1), features(1))])])
    assert not isinstance(plan.changes[0], OperationError)
    planned = weakref.ref(plan.pending.features)
    gc.disable()
    try:
        del plan
        assert planned() is None
    finally:
        gc.enable()
