"""`sgf-train`: train a model, evaluate it, and show what it says about a node that it has never seen."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from tqdm import tqdm

from sgformer import ModelConfig, SgformerError
from training import digits
from training.demo import Proof, prove
from training.digits import Drawing
from training.labelled import LabelledGraph
from training.loop import Epoch, TrainedModel, TrainingConfig, train


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        run(options)
    except SgformerError as error:
        print(f"sgf-train: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    defaults = TrainingConfig()
    parser = argparse.ArgumentParser(
        prog="sgf-train", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--dataset", choices=["digits"], default="digits", help="which data to train on")
    parser.add_argument("--hidden", type=int, default=64, metavar="D", help="size of the node embeddings")
    parser.add_argument("--heads", type=int, default=1, metavar="H", help="attention heads")
    parser.add_argument("--layers", type=int, default=2, metavar="L", help="GCN layers")
    parser.add_argument("--alpha", type=float, default=0.5, metavar="A", help="share of the graph branch, in [0, 1)")
    parser.add_argument("--epochs", type=int, default=100, help="passes over the graph")
    parser.add_argument("--lr", type=float, default=defaults.learning_rate, help="learning rate")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="the same seed gives the same model")
    parser.add_argument("--json", action="store_true", help="print one JSON object and no progress")
    return parser


def run(options: argparse.Namespace) -> None:
    training = TrainingConfig(epochs=options.epochs, learning_rate=options.lr, seed=options.seed)
    data, drawing = digits.load(options.seed)
    config = ModelConfig(
        in_features=data.graph.num_features,
        out_features=len(data.class_names),
        hidden=options.hidden,
        heads=options.heads,
        layers=options.layers,
        alpha=options.alpha,
        attention_dropout=0.2,
        gnn_dropout=0.2,
    )
    start = time.perf_counter()
    # disable=None: a bar for a person at a terminal, silence in a log file.
    with tqdm(total=options.epochs, desc=options.dataset, unit="epoch", disable=options.json or None) as bar:

        def show(epoch: Epoch) -> None:
            bar.set_postfix(loss=f"{epoch.loss:.3f}", validation=f"{epoch.validation_accuracy:.1%}", refresh=False)
            bar.update()

        trained = train(config, data, training, show)
    seconds = time.perf_counter() - start
    proof = prove(trained.model, data, drawing)
    if options.json:
        print(json.dumps(as_dictionary(data, trained, seconds, drawing, proof)))
    else:
        print(as_text(data, trained, seconds, drawing, proof))


def as_dictionary(
    data: LabelledGraph, trained: TrainedModel, seconds: float, drawing: Drawing, proof: Proof
) -> dict[str, object]:
    return {
        "nodes": data.graph.num_nodes,
        "edges": data.graph.num_edges,
        "best_epoch": asdict(trained.best),
        "test_accuracy": trained.test_accuracy,
        "seconds": seconds,
        "new_node": asdict(proof) | {"truth": drawing.label},
    }


def as_text(data: LabelledGraph, trained: TrainedModel, seconds: float, drawing: Drawing, proof: Proof) -> str:
    return f"""
{data.graph.num_nodes:,} digits, {data.graph.num_edges:,} edges, trained in {seconds:.1f} s
test accuracy {trained.test_accuracy:.1%} (best epoch {trained.best.number} by validation)

A digit that the graph has never seen, with {len(drawing.neighbors)} similar digits as its neighbours:

{drawing}

It is a {proof.label} ({proof.probability:.1%}; in truth a {drawing.label}), {proof.exactness}: \
{proof.largest_difference:.0e} from the full-graph forward with it added,
in {proof.seconds * 1e3:.2f} ms instead of {proof.full_forward_seconds * 1e3:.0f} ms."""


if __name__ == "__main__":
    sys.exit(main())
