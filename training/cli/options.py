"""The options of the `sgf-train` commands. Each is declared once: its type, its flag and its help."""

from __future__ import annotations

import argparse
import codecs
import csv
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from model_store.cli.parser import CommandParser
from model_store.cli.terminal import at_least_one, default_device, default_model, default_store
from model_store.run_settings import (
    OVERRIDE_TYPES,
    Activation,
    Structural,
    dataset_descriptions,
    override_flag,
    recipe_names,
)
from sgformer.config import Task
from sgformer.device import Device
from training.data.tables.reading import Dates, Impute, Reading, UnknownEdges
from training.fit.settings import default_settings

SETTINGS: dict[str, tuple[str, str]] = {
    "hidden": ("--hidden", "size of the node embeddings"),
    "heads": ("--heads", "attention heads"),
    "layers": ("--layers", "GCN layers"),
    "alpha": ("--alpha", "share of the graph branch, in [0, 1]; 1: a GCN without attention"),
    "attention_dropout": ("--dropout", "dropout of the attention branch"),
    "gnn_dropout": ("--gnn-dropout", "dropout of the graph branch"),
    "learning_rate": ("--lr", "learning rate"),
    "weight_decay": ("--weight-decay", "weight decay of the attention branch"),
    "gnn_weight_decay": ("--gnn-weight-decay", "weight decay of the graph branch"),
    "epochs": ("--epochs", "largest number of passes over the graph"),
    "patience": ("--patience", "stop after this many epochs without a better validation score; as many as --epochs: never"),
    "batch_nodes": ("--batch-nodes", "nodes per mini-batch (random partition); default: the full graph"),
    "label_smoothing": ("--label-smoothing", "share of a label that the loss spreads over all classes, in [0, 1)"),
    "schedule": ("--schedule", "of the learning rate; cosine: it falls to 0 over --epochs"),
    "feature_dropout": ("--feature-dropout", "share of the feature values that a training step does not read, in [0, 1)"),
    "edge_dropout": ("--edge-dropout", "share of the edges that a training step does not read, in [0, 1)"),
    "seed": ("--seed", "the same seed gives the same model"),
    "gnn_input": ("--gnn-input", "the input of the GCN"),
    "gnn_norm": ("--gnn-norm", "norm after the weights of a GCN layer"),
    "gnn_layer_residual": ("--gnn-layer-residual", "true: a GCN layer adds the output of the previous layer"),
    "gnn_plain_last": ("--gnn-plain-last", "true: the last GCN layer has no norm, activation, dropout or residual"),
    "value_map": ("--value-map", "true: the values of the attention are a linear map"),
    "attention_residual": ("--attention-residual", "weight of the attention beside its input, in [0, 1]; 1: no residual"),
    "input_layer_norm": ("--input-layer-norm", "true: a layer norm in the input layer"),
    "attention_layer_norm": ("--attention-layer-norm", "true: a layer norm after the attention"),
    "feature_transform": ("--feature-transform", "scaling of the features; auto: chosen by their kind"),
}
"""Settings that a recipe may set and a flag may override: flag, help."""
DATASET_HELP = f"one of {', '.join(dataset_descriptions())}"
ACTIVATE_HELP = "make the new version live: always (also if no value is given), or if_better than the live version"
KEEP_HELP = (
    "remove older versions, but not the newest N, the live version and the roll-back target (default: remove only versions "
    "that --activate if_better did not activate)"
)
DATA_HELP = "graph.npz, or folder of CSV or parquet files, or graph folder (sgf-train import)"
LIVE_HELP = "; or live: the graph of the live version with all changes since"
TABLES = "your own tables (default: columns are detected, or read as for the live version of the model)"
IMPUTE_HELP = """fill in missing values (default: refused): the mean of a column, or zero; flag: the mean, and one more
feature that says that the value was missing; always the most frequent category"""
STRUCTURAL_HELP = """for data without features: make them from the edges; degree: the number of neighbours; random: also
random projections of the list of neighbours"""
PROCESSES_HELP = "processes of this machine that share the work (default 1); for several machines, see docs/training.md"
DEVICE_HELP = "what computes (SGF_DEVICE, else auto); auto: a GPU if there is one for every process, else the CPU"
LIVE = Path("live")
"""In place of a path: `--data live`. Compared with `is`: ./live is a path."""
RECIPE_HELP = f"settings that were chosen for a data set: {', '.join(recipe_names())}; or a file.toml"


def split_or_shares(text: str) -> int | tuple[float, float, float]:
    if text.isdecimal():
        return int(text)
    try:
        train, validation, test = (float(part) for part in text.split("/"))
    except ValueError:
        message = f"{text!r}, expected the number of a split, or shares such as 0.5/0.25/0.25"
        raise argparse.ArgumentTypeError(message) from None
    if min(train, validation, test) < 0 or train == 0 or validation == 0 or abs(train + validation + test - 1) > 1e-6:
        raise argparse.ArgumentTypeError(f"{text!r}: shares must add up to 1, with more than 0 for training and validation")
    return train, validation, test


def true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}, expected true or false")
    return text.lower() == "true"


def column_names(text: str) -> tuple[str, ...]:
    """Names with commas between them; a name with a comma in double quotes."""
    names = tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r}, expected names of columns with commas between them")
    return names


def delimiter(text: str) -> str:
    character = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}.get(text, text)
    if len(character) != 1 or character in '"\r\n':
        raise argparse.ArgumentTypeError(f"{text!r}, expected one character, tab or space")
    return character


def encoding(text: str) -> str:
    try:
        return codecs.lookup(text).name
    except LookupError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an encoding; for example utf-8, utf-16, cp1252, latin-1"
        ) from None


def data_path(text: str) -> Path:
    return LIVE if text == "live" else Path(text)


COLUMNS: dict[str, Any] = {"metavar": "A,B,C", "type": column_names, "default": (), "section": TABLES}


DEVICE: dict[str, Any] = {"choices": get_args(Device), "default": default_device}


class OldName(argparse.Action):
    """A deprecated flag. Its new name is the name of its destination."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        sys.stderr.write(f"sgf-train: {flag} is deprecated, use --{self.dest.replace('_', '-')}\n")
        setattr(namespace, self.dest, values)


class Flag:
    """The flag of an option. Its name, and the type or choices, follow from the field unless they are stated here.

    Args:
        one_of: flags with the same text exclude each other.
        section: the heading in --help.
        arguments: those of `add_argument`; a default may be a function.
    """

    def __init__(
        self,
        description: str,
        metavar: str | None = None,
        *,
        one_of: str | None = None,
        section: str | None = None,
        **arguments: Any,
    ) -> None:
        self.one_of, self.section, self._name = one_of, section, arguments.pop("name", None)
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
    processes: int = 1
    device: str = "cpu"
    """A `Device`; while a command runs, the device of its process."""
    jobs: int = 1

    @property
    def kill_after(self) -> int | None:
        """Seconds after which the kernel ends the process."""
        return self.at_most

    @classmethod
    def parser(cls, program: str, description: str | None, words: Iterable[str] = ()) -> CommandParser:
        """`words`: see `CommandParser`."""
        parser = CommandParser(program, words=words, description=description)
        groups: dict[str | None, Any] = {None: parser}
        for option, hint in get_type_hints(cls, include_extras=True).items():
            for flag in getattr(hint, "__metadata__", ()):
                if flag.section and flag.section not in groups:
                    groups[flag.section] = parser.add_argument_group(flag.section)
                if flag.one_of not in groups:
                    groups[flag.one_of] = parser.add_mutually_exclusive_group(required=flag.one_of == "required source")
                flag.add_to(groups[flag.section or flag.one_of], option, get_args(hint)[0])
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
class ModelOptions(OutputOptions):
    store: Annotated[Path, Flag("folder of the models (SGF_STORE)", default=default_store)]
    model: Annotated[str | None, Flag("name in the store (SGF_MODEL)", default=default_model)]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(OutputOptions):
    """The fields of `Reading`."""

    id_column: Annotated[str | None, Flag("ids of the nodes", "NAME", section=TABLES)]
    label_column: Annotated[str | None, Flag("labels of the nodes", "NAME", section=TABLES)]
    source_column: Annotated[str | None, Flag("one end of an edge", "NAME", section=TABLES)]
    target_column: Annotated[str | None, Flag("the other end", "NAME", section=TABLES)]
    feature_columns: Annotated[tuple[str, ...], Flag("the features (default: all other columns)", **COLUMNS)]
    ignore_columns: Annotated[
        tuple[str, ...], Flag("columns to leave out, of nodes and of edges (default: none)", **COLUMNS)
    ]
    category_columns: Annotated[
        tuple[str, ...], Flag("columns whose values, also numbers, are categories (default: none)", **COLUMNS)
    ]
    impute: Annotated[Impute | None, Flag(IMPUTE_HELP, section=TABLES)]
    dates: Annotated[Dates | None, Flag("turn dates into days since 1970-01-01 (default: refused)", section=TABLES)]
    unknown_edges: Annotated[
        UnknownEdges | None, Flag("drop edges that name unknown ids (default: refused)", section=TABLES)
    ]
    delimiter: Annotated[
        str | None, Flag("of CSV files (default: detected): a character, tab or space", "C", type=delimiter, section=TABLES)
    ]
    encoding: Annotated[str | None, Flag("of CSV files (default utf-8), e.g. cp1252", "NAME", type=encoding, section=TABLES)]
    decimal_comma: Annotated[bool, Flag("numbers are written 3,14", section=TABLES)]
    structural: Annotated[Structural | None, Flag(STRUCTURAL_HELP)]

    @property
    def reading(self) -> Reading:
        return Reading(**{option.name: getattr(self, option.name) for option in fields(Reading)})


@dataclass(frozen=True, kw_only=True)
class DataOptions(ModelOptions, ReadingOptions):
    dataset: Annotated[str | None, Flag(f"{DATASET_HELP} (default digits)", "NAME", one_of="source")]
    data: Annotated[Path | None, Flag(f"your own {DATA_HELP}{LIVE_HELP}", "PATH", type=data_path, one_of="source")]
    split: Annotated[
        int | tuple[float, float, float],
        Flag("a stored split, or shares of a random one", "K|T/V/T", type=split_or_shares, default=0),
    ]
    task: Annotated[Task | None, Flag("default: derived from the labels")]
    recipe: Annotated[str | None, Flag(RECIPE_HELP, "NAME")]
    settings: dict[str, Any]
    """The settings that were given as flags."""

    @classmethod
    def parser(cls, program: str, description: str | None, words: Iterable[str] = ()) -> CommandParser:
        parser, defaults = super().parser(program, description, words), default_settings()
        for name, (flag_name, about) in SETTINGS.items():
            default = "" if defaults[name] is None else f" (default: the recipe's, or {defaults[name]})"
            flags = dict.fromkeys((flag_name, override_flag(name)))  # also by its own name, for programs
            kind = OVERRIDE_TYPES[name]
            inferred = {"choices": get_args(kind)} if get_origin(kind) is Literal else {"type": kind}
            inferred |= {"type": true_or_false, "metavar": "true|false"} if kind is bool else {}
            parser.add_argument(*flags, dest=name, help=about + default, **inferred)
        choices = get_args(OVERRIDE_TYPES["feature_transform"])
        parser.add_argument("--features", dest="feature_transform", choices=choices, action=OldName, help=argparse.SUPPRESS)
        return parser

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        values = vars(namespace)
        settings = {name: values[name] for name in SETTINGS if values[name] is not None}
        return super().of(argparse.Namespace(**values, settings=settings))


@dataclass(frozen=True, kw_only=True)
class CheckOptions(DataOptions):
    path: Path | None
    """DATA, a positional argument: the same as `--data DATA`."""

    @classmethod
    def parser(cls, program: str, description: str | None, words: Iterable[str] = ()) -> CommandParser:
        parser = super().parser(program, description, words)
        parser.add_argument("path", nargs="?", type=data_path, metavar="DATA", help=f"your own {DATA_HELP}{LIVE_HELP}")
        return parser


@dataclass(frozen=True, kw_only=True)
class ImportOptions(ReadingOptions):
    path: Path
    out: Path
    task: Annotated[Task | None, Flag("default: derived from the labels")]
    store: Annotated[Path, Flag("folder of the models (SGF_STORE)", default=default_store)]
    model: Annotated[str | None, Flag("read tables as for the live version of this model (default: columns are detected)")]

    @classmethod
    def parser(cls, program: str, description: str | None, words: Iterable[str] = ()) -> CommandParser:
        parser = super().parser(program, description, words)
        parser.add_argument(
            "path", type=Path, metavar="DATA", help="graph.npz, or folder of CSV or parquet files, or folder of OGB's files"
        )
        parser.add_argument("out", type=Path, metavar="OUT", help="the graph folder, which must not exist")
        return parser


@dataclass(frozen=True, kw_only=True)
class StoreOptions(ModelOptions):
    processes: Annotated[int, Flag(PROCESSES_HELP, "N", type=at_least_one, default=1)]
    device: Annotated[str, Flag(DEVICE_HELP, **DEVICE)]
    activate: Annotated[Activation, Flag(ACTIVATE_HELP, nargs="?", const="always", default="never")]
    discard_changes: Annotated[bool, Flag("activate although the live graph has changes that the new version does not have")]
    keep: Annotated[int | None, Flag(KEEP_HELP, "N", type=at_least_one)]
    no_raw_data: Annotated[bool, Flag("store no features, labels and split: only what predictions need")]
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
    device: Annotated[str, Flag(DEVICE_HELP, **DEVICE)]
    trials: Annotated[int, Flag("total number of trials", "N", type=at_least_one, default=50)]
    splits: Annotated[int | None, Flag("search settings for the first K stored splits together", "K", type=at_least_one)]
    out: Annotated[Path, Flag("the recipe to write", "FILE.toml", required=True)]
    study: Annotated[Path | None, Flag("database of the trials (default: beside the recipe)", "FILE.db")]
    begin: Annotated[str | None, Flag("the first trial has the settings of this recipe", "RECIPE")]
    jobs: Annotated[int, Flag("processes that share the search, with one thread each", "N", type=at_least_one, default=1)]
    at_most: Annotated[int | None, Flag("end after this time, with a recipe", "SECONDS", type=at_least_one)]

    @property
    def kill_after(self) -> None:
        """None: the search ends by itself."""


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(StoreOptions, ReadingOptions):
    data: Annotated[Path | None, Flag(f"the new {DATA_HELP}{LIVE_HELP}", "PATH", type=data_path, one_of="required source")]
    dataset: Annotated[str | None, Flag(DATASET_HELP, "NAME", one_of="required source")]
    source: Annotated[int | None, Flag("the version whose weights are published (default: live)", "VERSION", name="--from")]


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    table: str
    seeds: int | None
    only: list[str] | None
    models: list[str] | None
    results: Path
