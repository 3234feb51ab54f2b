"""sgf-train: from data to a model in the store.

    sgf-train --recipe cora --activate                  a published data set with its recipe
    sgf-train --data graph.npz --hidden 128             your own graph (or a folder with nodes.csv and edges.csv)
    sgf-train tune --data graph.npz --out mine.toml     search settings by validation; then --recipe mine.toml
    sgf-train refresh --data graph.npz --activate       the live model's weights over a graph that has grown, no training
    sgf-train table medium --seeds 5                    the paper's table, side by side

exit codes: 0 done · 1 refused or failed · 2 wrong usage · 130 stopped by a signal (go on with --resume)
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import training.cli.requirements  # noqa: F401  # first: it ends the program if the packages of training are missing

# isort: split
from model_store import StoreError
from model_store.cli.flags import at_least_one, default_model, default_store
from sgformer import ConfigError, SgformerError
from sgformer.config import FeatureTransform, GnnInput, Task
from training.cli import commands
from training.cli.events import Events
from training.cli.refresh_command import refresh_model
from training.data.datasets import DATASETS
from training.data.splits import Shares
from training.fit.loop import Stopped
from training.fit.settings import recipe_names
from training.paper import tables
from training.release.delivery import Mode

SETTINGS: dict[str, tuple[str, type, str]] = {
    "hidden": ("--hidden", int, "size of the node embeddings"),
    "heads": ("--heads", int, "attention heads"),
    "layers": ("--layers", int, "GCN layers"),
    "alpha": ("--alpha", float, "share of the graph branch, in [0, 1)"),
    "attention_dropout": ("--dropout", float, "dropout of the attention branch"),
    "gnn_dropout": ("--gnn-dropout", float, "dropout of the graph branch"),
    "learning_rate": ("--lr", float, "learning rate"),
    "weight_decay": ("--weight-decay", float, "of the attention branch"),
    "gnn_weight_decay": ("--gnn-weight-decay", float, "of the graph branch"),
    "epochs": ("--epochs", int, "passes over the graph"),
    "patience": ("--patience", int, "stop after so many epochs without a better validation score"),
    "batch_nodes": ("--batch-nodes", int, "nodes per mini-batch (random partition); default: the full graph"),
    "seed": ("--seed", int, "the same seed gives the same model"),
}
"""Settings that a recipe may give and a flag may change."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = {"refresh": refresh_parser, "table": tables.parser, "tune": tune_parser}.get(given[0] if given else "")
    options = parser().parse_args(given[1:]) if parser else train_parser().parse_args(given)
    options.events = Events(getattr(options, "events", None), getattr(options, "only_while", None))
    options.events.tell("started", pid=os.getpid())
    if at_most := getattr(options, "at_most", None):
        signal.alarm(at_most)  # by the kernel's hand: it needs nobody who watches
    # Outside the loop, which has its own answer to signals, a signal clears away what is half written.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code: int = options.command(options)
    except (SgformerError, StoreError, OSError) as error:
        options.events.tell("failed", error=str(error))
        print(f"sgf-train: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except (KeyboardInterrupt, Stopped):
        options.events.tell("stopped")
        print("sgf-train: interrupted", file=sys.stderr)
        return commands.STOPPED
    except Exception as error:  # a fault of ours: the traceback is for the log, the event for whoever waits
        options.events.tell("failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return code


def train_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sgf-train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _add_data(parser)
    _add_settings(parser)
    parser.add_argument("--warm-start", action="store_true", help="begin with the live version's weights where shapes fit")
    parser.add_argument("--resume", action="store_true", help="go on where a stopped or killed run was")
    parser.add_argument("--checkpoint-every", type=float, default=30.0, metavar="SECONDS", help="how often a run is kept")
    parser.add_argument("--no-checkpoint", action="store_true", help="keep nothing to resume from")
    parser.add_argument("--tune", type=at_least_one, metavar="N", help="search N settings first, by validation")
    parser.add_argument("--no-publish", action="store_true", help="train and score only")
    parser.add_argument("--states", choices=["float32", "float16"], default="float32", help="float16 halves the disk space")
    _add_store(parser)
    _add_output(parser)
    parser.set_defaults(command=commands.train_model)
    return parser


def tune_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "sgf-train tune",
        description="Search settings by validation scores and write the best as a recipe. Settings that are given stay "
        "fixed. Trials are kept beside it: the same command goes on with a stopped search, and several may share one.",
    )
    _add_data(parser)
    _add_settings(parser)
    parser.add_argument("--trials", type=at_least_one, default=50, metavar="N", help="how many in all (default 50)")
    parser.add_argument("--splits", type=at_least_one, metavar="K", help="settings for the first K stored splits together")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.toml", help="the recipe")
    parser.add_argument("--study", type=Path, metavar="FILE.db", help="the trials (default: beside the recipe)")
    _add_output(parser)
    parser.set_defaults(command=commands.search_settings)
    return parser


def refresh_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sgf-train refresh", description="The same weights over new data, without training.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="PATH", help="the new graph.npz, or folder")
    source.add_argument("--dataset", metavar="NAME", help=f"one of {', '.join(DATASETS)}")
    parser.add_argument("--from", dest="source", type=int, metavar="VERSION", help="whose weights (default: the live one)")
    _add_store(parser)
    _add_output(parser)
    parser.set_defaults(command=refresh_model)
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--dataset", metavar="NAME", help=f"one of {', '.join(DATASETS)} (default digits)")
    source.add_argument("--data", type=Path, metavar="PATH", help="your own graph.npz, or folder of CSV or parquet files")
    parser.add_argument("--split", type=_split, default=0, metavar="K|T/V/T", help="a stored split, or shares to draw one")
    parser.add_argument("--task", choices=get_args(Task), help="told from the labels unless given")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"settings that were chosen for a data set: {', '.join(recipe_names())}; or a file.toml",
    )
    for name, (flag, kind, about) in SETTINGS.items():
        flags = dict.fromkeys((flag, f"--{name.replace('_', '-')}"))  # programs know a setting by its name
        parser.add_argument(*flags, dest=name, type=kind, help=about)
    parser.add_argument("--gnn-input", dest="gnn_input", choices=get_args(GnnInput), help="what the GCN reads")
    parser.add_argument(
        "--features", dest="feature_transform", choices=get_args(FeatureTransform), help="how features are normalised"
    )
    parser.set_defaults(settings=[*SETTINGS, "gnn_input", "feature_transform"])


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", type=Path, default=default_store(), help="SGF_STORE")
    parser.add_argument("--model", default=default_model(), help="name in the store (SGF_MODEL)")
    parser.add_argument(
        "--activate",
        nargs="?",
        const="always",
        default="never",
        choices=get_args(Mode),
        help="make the new version live: always (the default where nothing is said), or if_better than the live one",
    )
    parser.add_argument(
        "--keep",
        type=at_least_one,
        metavar="N",
        help="remove older versions; the newest N, the live one and the roll-back target stay (default: all)",
    )
    parser.add_argument("--job", metavar="ID", help="kept in the manifest: which job asked for this version")
    parser.add_argument(
        "--only-while", type=Path, metavar="FILE", help="publish, and go live, only while this file is there"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object and no progress")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--at-most", type=int, metavar="SECONDS", help="end after so long, whatever has been reached")
    parser.add_argument("--events", type=Path, metavar="FILE", help="append what happens to this file, as JSON lines")


def _split(text: str) -> int | Shares:
    if "/" in text:
        return _shares(text)
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}, expected the number of a split, or shares such as 0.5/0.25/0.25")
    return int(text)


def _shares(text: str) -> Shares:
    try:
        train, validation, test = (float(part) for part in text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected three shares, e.g. 0.5/0.25/0.25") from None
    if min(train, validation, test) < 0 or train == 0 or validation == 0 or abs(train + validation + test - 1) > 1e-6:
        raise argparse.ArgumentTypeError(f"{text!r}: shares must add up to 1, and some nodes must train and validate")
    return train, validation, test


if __name__ == "__main__":
    sys.exit(main())
