"""The options of the `sgf-train` commands. Each is declared once: its type, its flag and its help."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from model_store.cli.terminal import at_least_one, default_model, default_store
from model_store.run_contract import OVERRIDE_TYPES, Activation, override_flag, recipe_names
from sgformer.config import Task
from training.data.datasets import DATASETS
from training.data.splits import Shares

SETTINGS: dict[str, tuple[str, str]] = {
    "hidden": ("--hidden", "size of the node embeddings"),
    "heads": ("--heads", "attention heads"),
    "layers": ("--layers", "GCN layers"),
    "alpha": ("--alpha", "share of the graph branch, in [0, 1)"),
    "attention_dropout": ("--dropout", "dropout of the attention branch"),
    "gnn_dropout": ("--gnn-dropout", "dropout of the graph branch"),
    "learning_rate": ("--lr", "learning rate"),
    "weight_decay": ("--weight-decay", "weight decay of the attention branch"),
    "gnn_weight_decay": ("--gnn-weight-decay", "weight decay of the graph branch"),
    "epochs": ("--epochs", "passes over the graph"),
    "patience": ("--patience", "stop after this many epochs without a better validation score"),
    "batch_nodes": ("--batch-nodes", "nodes per mini-batch (random partition); default: the full graph"),
    "seed": ("--seed", "the same seed gives the same model"),
    "gnn_input": ("--gnn-input", "the input of the GCN"),
    "feature_transform": ("--features", "normalisation of the features"),
}
"""Settings that a recipe may set and a flag may override: flag, help."""
DATASET_HELP = f"one of {', '.join(DATASETS)}"
ACTIVATE_HELP = "make the new version live: always (also if no value is given), or if_better than the live version"
KEEP_HELP = "remove older versions, but not the newest N, the live one and the roll-back target (default: keep all)"
DATA_HELP = "graph.npz, or folder of CSV or parquet files"
RECIPE_HELP = f"settings that were chosen for a data set: {', '.join(recipe_names())}; or a file.toml"


def split_or_shares(text: str) -> int | Shares:
    if text.isdecimal():
        return int(text)
    try:
        train, validation, test = (float(part) for part in text.split("/"))
    except ValueError:
        message = f"{text!r}, expected the number of a split, or shares such as 0.5/0.25/0.25"
        raise argparse.ArgumentTypeError(message) from None
    if min(train, validation, test) < 0 or train == 0 or validation == 0 or abs(train + validation + test - 1) > 1e-6:
        raise argparse.ArgumentTypeError(f"{text!r}: shares must add up to 1, and those of training and validation not be 0")
    return train, validation, test


class Flag:
    """How an option is given. Its name, and the type or choices, follow from the field unless they are stated here.

    Args:
        one_of: flags with the same text exclude each other.
        arguments: those of `add_argument`; a default may be a function.
    """

    def __init__(self, description: str, metavar: str | None = None, *, one_of: str | None = None, **arguments: Any) -> None:
        self.one_of, self._name = one_of, arguments.pop("name", None)
        self._arguments = {"help": description} | ({"metavar": metavar} if metavar else {}) | arguments

    def add_to(self, parser: Any, option: str, kind: Any) -> None:
        kind = get_args(kind)[0] if get_origin(kind) in (Union, UnionType) else kind
        if kind is bool:
            inferred: dict[str, Any] = {"action": "store_true"}
        else:
            inferred = {"choices": get_args(kind)} if get_origin(kind) is Literal else {"type": kind}
        default = self._arguments.get("default")
        arguments = inferred | self._arguments | ({"default": default()} if callable(default) else {})
        parser.add_argument(self._name or f"--{option.replace('_', '-')}", dest=option, **arguments)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every command. A command without one of these flags has the default."""

    json: bool = False
    quiet: bool = False
    at_most: int | None = None
    events: Path | None = None
    only_while: Path | None = None

    @classmethod
    def parser(cls, program: str, description: str | None) -> argparse.ArgumentParser:
        layout = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(program, description=description, formatter_class=layout)
        groups: dict[str | None, Any] = {None: parser}
        for option, hint in get_type_hints(cls, include_extras=True).items():
            for flag in getattr(hint, "__metadata__", ()):
                if flag.one_of not in groups:
                    groups[flag.one_of] = parser.add_mutually_exclusive_group(required=flag.one_of == "required source")
                flag.add_to(groups[flag.one_of], option, get_args(hint)[0])
        return parser

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        values = vars(namespace)
        return cls(**{option.name: values[option.name] for option in fields(cls) if option.name in values})


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    json: Annotated[bool, Flag("print one JSON object and no progress")]
    quiet: Annotated[bool, Flag("no progress")]
    at_most: Annotated[int | None, Flag("kill the run after this time", "SECONDS")]
    events: Annotated[Path | None, Flag("append events to this file, as JSON lines", "FILE")]


@dataclass(frozen=True, kw_only=True)
class DataOptions(OutputOptions):
    dataset: Annotated[str | None, Flag(f"{DATASET_HELP} (default digits)", "NAME", one_of="source")]
    data: Annotated[Path | None, Flag(f"your own {DATA_HELP}", "PATH", one_of="source")]
    split: Annotated[
        int | Shares, Flag("a stored split, or shares of a random one", "K|T/V/T", type=split_or_shares, default=0)
    ]
    task: Annotated[Task | None, Flag("default: derived from the labels")]
    recipe: Annotated[str | None, Flag(RECIPE_HELP, "NAME")]
    settings: dict[str, Any]
    """The settings that were given as flags."""

    @classmethod
    def parser(cls, program: str, description: str | None) -> argparse.ArgumentParser:
        parser = super().parser(program, description)
        for name, (flag_name, description) in SETTINGS.items():
            flags = dict.fromkeys((flag_name, override_flag(name)))  # also by its own name, for programs
            kind = OVERRIDE_TYPES[name]
            inferred = {"choices": get_args(kind)} if get_origin(kind) is Literal else {"type": kind}
            parser.add_argument(*flags, dest=name, help=description, **inferred)
        return parser

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        values = vars(namespace)
        settings = {name: values[name] for name in SETTINGS if values[name] is not None}
        return super().of(argparse.Namespace(**values, settings=settings))


@dataclass(frozen=True, kw_only=True)
class StoreOptions(OutputOptions):
    store: Annotated[Path, Flag("folder of the models (SGF_STORE)", default=default_store)]
    model: Annotated[str | None, Flag("name in the store (SGF_MODEL)", default=default_model)]
    activate: Annotated[Activation, Flag(ACTIVATE_HELP, nargs="?", const="always", default="never")]
    keep: Annotated[int | None, Flag(KEEP_HELP, "N", type=at_least_one)]
    job: Annotated[str | None, Flag("the job that trains this version, recorded in the manifest", "ID")]
    only_while: Annotated[Path | None, Flag("publish and activate only while this file exists", "FILE")]


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StoreOptions, DataOptions):
    warm_start: Annotated[bool, Flag("start from the live version's weights where shapes fit")]
    resume: Annotated[bool, Flag("continue a stopped or killed run")]
    checkpoint_every: Annotated[float, Flag("time between checkpoints", "SECONDS", default=30.0)]
    no_checkpoint: Annotated[bool, Flag("write no checkpoint; the run cannot be resumed")]
    tune: Annotated[int | None, Flag("search N settings first, by validation", "N", type=at_least_one)]
    no_publish: Annotated[bool, Flag("train and score only")]
    states: Annotated[Literal["float32", "float16"], Flag("float16 halves the disk space", default="float32")]


@dataclass(frozen=True, kw_only=True)
class TuneOptions(DataOptions):
    trials: Annotated[int, Flag("total number of trials (default 50)", "N", type=at_least_one, default=50)]
    splits: Annotated[int | None, Flag("search settings for the first K stored splits together", "K", type=at_least_one)]
    out: Annotated[Path, Flag("the recipe to write", "FILE.toml", required=True)]
    study: Annotated[Path | None, Flag("database of the trials (default: beside the recipe)", "FILE.db")]


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(StoreOptions):
    data: Annotated[Path | None, Flag(f"the new {DATA_HELP}", "PATH", one_of="required source")]
    dataset: Annotated[str | None, Flag(DATASET_HELP, "NAME", one_of="required source")]
    source: Annotated[int | None, Flag("the version whose weights are published (default: live)", "VERSION", name="--from")]


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    table: str
    seeds: int
    only: list[str] | None
    results: Path
