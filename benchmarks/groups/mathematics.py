"""The model against PyTorch Geometric, and the cost of a new node against the size of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from benchmarks import graphs
from benchmarks.model_processes import take_turns
from benchmarks.pyg_peer import Pair
from benchmarks.results import Result, faster, slower, smaller, time_in_turns
from sgformer import Graph, InferenceModel, ModelConfig, NewNodes, SGFormer, Summary, extend, summarize
from sgformer.full_graph.forward import full_logits


def against_pyg() -> list[Result]:
    """Full forward and training step, in time and memory."""
    results = []
    for name, load_graph in graphs.GRAPHS.items():
        forward_bar, step_bar = (None, None) if name == "cora" else (5, 4)  # cora is too small for a required ratio
        graph = load_graph()
        label = f"{name} ({graph.num_nodes:,} nodes, {graph.num_edges:,} edges)"
        pair = Pair(graph)
        difference = float((pair.their_forward()() - pair.our_forward()()).abs().max())
        times, peaks = take_turns(name, "their_forward", "our_forward", "paper_forward")
        theirs, ours, paper = times.values()
        claim = f"full forward, PyG's weights (largest difference {difference:.0e}), {label}"
        results.append(faster(claim, ours, theirs, forward_bar))
        results.append(faster("full forward, the paper's model of the same sizes", paper, theirs, forward_bar))
        results.append(smaller("peak memory of a full forward", peaks["our_forward"], peaks["their_forward"], 0.5))
        times, peaks = take_turns(name, "their_step", "our_step")
        results.append(faster(f"training step, {label}", times["our_step"], times["their_step"], step_bar))
        results.append(smaller("peak memory of a training step", peaks["our_step"], peaks["their_step"], None))
    return results


def measure_new_node_by_graph_size() -> list[Result]:
    """An exact new node of degree 10 in a graph of a million nodes, against ten thousand, and against a full forward."""
    results = []
    for layers in (2, 3):
        small, large = (_summarize_graph(graphs.uniform(n, 5 * n, 64), layers) for n in (10_000, 1_000_000))
        times = time_in_turns({"small": small.ask(), "large": large.ask()}, rounds=1_000, warmups=50)
        claim = f"exact new node, degree 10, {layers} layers: N = 1,000,000 against N = 10,000"
        results.append(slower(claim, times["large"], times["small"], 1.3))
        forward = time_in_turns({"full": large.full_forward}, rounds=3, warmups=1)["full"]
        claim = f"exact new node against a full forward, {layers} layers, N = 1,000,000"
        results.append(faster(claim, times["large"], forward, None))
    return results


def measure_hub_neighbours() -> list[Result]:
    graph = graphs.debian_trixie()
    two, three = _summarize_graph(graph, layers=2), _summarize_graph(graph, layers=3)
    times = time_in_turns({"ordinary": two.ask(), "hub": two.ask(hub=True)}, rounds=1_000, warmups=50)
    # Not in turns with the others: a run with 3 layers evicts the CPU caches, and the next run would be slower.
    times |= time_in_turns({"deep": three.ask(hub=True)}, rounds=200, warmups=5)
    max_degree = int(graph.adjacency.all_degrees().max())
    claim = f"exact new node, degree 10, 2 layers: one neighbour a hub of {max_degree:,} edges, against ordinary neighbours"
    deeper = "the same hub with 3 layers: one pass over its neighbours"
    return [slower(claim, times["hub"], times["ordinary"], 1.5), slower(deeper, times["deep"], times["ordinary"], None)]


@dataclass(frozen=True)
class _SummarizedGraph:
    """A graph with the states and sums of the paper's model with random weights."""

    graph: Graph
    summary: Summary
    inference: InferenceModel
    model: SGFormer

    def ask(self, hub: bool = False) -> Callable[[], object]:
        """Returns a function that checks and answers the next question about a new node of degree 10.

        Its neighbours have at most 100 edges each; with `hub`, one neighbour is the node with the most edges.
        """
        rng = np.random.default_rng(0)
        degrees = self.graph.adjacency.all_degrees()
        ordinary = np.flatnonzero(degrees <= 100)
        width, count = self.graph.num_features, self.graph.num_nodes
        questions = []
        for _ in range(500):
            neighbors = [int(node) for node in rng.choice(ordinary, 10)]
            if hub:
                neighbors[0] = int(degrees.argmax())
            questions.append((rng.standard_normal((1, width), dtype=np.float32), [neighbors]))
        next_questions = cycle(questions)

        def answer() -> object:
            features, lists = next(next_questions)
            new = NewNodes.build(features, lists, num_nodes=count, num_features=width)
            return extend(self.inference, self.summary.states, self.summary.sums, self.graph.adjacency, new)

        return answer

    def full_forward(self) -> object:
        return full_logits(self.model.config, self.model.weights(), self.graph)


def _summarize_graph(graph: Graph, layers: int) -> _SummarizedGraph:
    model = SGFormer(ModelConfig(in_features=graph.num_features, out_features=10, layers=layers)).eval()
    return _SummarizedGraph(graph, summarize(model.config, model.weights(), graph), model.inference(), model)
