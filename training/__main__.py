"""sgf-train: from data to a model in the store.

    sgf-train --recipe cora --activate                  a published data set with its recipe
    sgf-train --data graph.npz --hidden 128             your own graph (or a folder with nodes.csv and edges.csv)
    sgf-train check graph.npz                           what the data is and what is wrong with it; trains nothing
    sgf-train import tables/ graph/                     a graph folder from tables that exceed memory; then --data graph/
    sgf-train tune --data graph.npz --out mine.toml     search settings by validation; then --recipe mine.toml
    sgf-train refresh --data graph.npz --activate       publish the live weights over a graph that has grown, no training
    sgf-train table medium                              a table of the paper, beside baselines and published figures

exit codes: 0 done · 1 refused or failed · 2 wrong usage · 130 stopped by a signal (continue with --resume)
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from model_store.cli.parser import CommandParser
from model_store.cli.terminal import interruptible, print_error
from training.cli.options import (
    SETTINGS,
    CheckOptions,
    ImportOptions,
    Options,
    RefreshOptions,
    TableOptions,
    TrainOptions,
    TuneOptions,
)
from training.cli.requirements import missing_packages

__all__ = ["SETTINGS", "main", "train_parser"]
TUNE_HELP = """Search settings by validation scores and write the best as a recipe. Settings given as flags stay fixed.
The trials are stored: the same command continues a stopped search, and several processes (--jobs) may share one. Ctrl-C
and --at-most end the search with a recipe."""
CHECK_HELP = "Print what the data is, what training would do with it, and what is wrong with it. Nothing is trained."
IMPORT_HELP = (
    "Make a graph folder from data that may exceed memory. --data of the other commands reads it without loading it."
)
REFRESH_HELP = "Publish a version's weights over new data, without training."
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


Run = Callable[[Any, Any], int]


class Command(NamedTuple):
    parser: Callable[[], CommandParser]
    options: type[Options]
    run: Run


@interruptible("sgf-train")
def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = COMMANDS.get(words[0]) if words else None
    parse, options_type, run = command or Command(train_parser, TrainOptions, _imported("cli.train_command", "train_model"))
    options = options_type.of(parse().parse_args(words[1:] if command else words))
    if problem := missing_packages():
        print_error("sgf-train", problem)
        return 2
    start = _import("training.cli.running").start_command  # here: it loads numpy and pydantic, and the help must not
    return int(start(run, options, words))


def train_parser() -> CommandParser:
    return TrainOptions.parser("sgf-train", __doc__, COMMANDS)


def _imported(module: str, function: str) -> Run:
    """The function of a command, imported when it is called: importing torch takes seconds, and `--help` must not wait."""
    return lambda options, events: int(getattr(_import(f"training.{module}"), function)(options, events))


def _import(module: str) -> ModuleType:
    """Imports a module; Ctrl-C and SIGTERM take effect afterwards, because extension modules may swallow the exception."""
    received: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in STOP_SIGNALS}
    try:
        return import_module(module)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            raise KeyboardInterrupt


COMMANDS = {
    "check": Command(
        lambda: CheckOptions.parser("sgf-train check", CHECK_HELP),
        CheckOptions,
        _imported("cli.check_command", "check_data"),
    ),
    "import": Command(
        lambda: ImportOptions.parser("sgf-train import", IMPORT_HELP),
        ImportOptions,
        _imported("cli.import_command", "import_data"),
    ),
    "refresh": Command(
        lambda: RefreshOptions.parser("sgf-train refresh", REFRESH_HELP),
        RefreshOptions,
        _imported("cli.refresh_command", "refresh_model"),
    ),
    "table": Command(
        lambda: import_module("training.paper.tables").parser(),
        TableOptions,
        _imported("paper.tables", "run_table"),
    ),
    "tune": Command(
        lambda: TuneOptions.parser("sgf-train tune", TUNE_HELP),
        TuneOptions,
        _imported("cli.tune_command", "tune_settings"),
    ),
}

if __name__ == "__main__":
    sys.exit(main())
