"""sgf-train: from data to a model in the store.

    sgf-train --recipe cora --activate                  a published data set with its recipe
    sgf-train --data graph.npz --hidden 128             your own graph (or a folder with nodes.csv and edges.csv)
    sgf-train tune --data graph.npz --out mine.toml     search settings by validation; then --recipe mine.toml
    sgf-train refresh --data graph.npz --activate       publish the live weights over a graph that has grown, no training
    sgf-train table medium --seeds 5                    a table of the paper, beside the published figures

exit codes: 0 done · 1 refused or failed · 2 wrong usage · 130 stopped by a signal (continue with --resume)
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import training.cli.requirements  # noqa: F401  # first: it ends the program if the packages of training are missing

# isort: split
from model_store import StoreError
from model_store.run_contract import FailedEvent, StartedEvent, StoppedEvent
from sgformer import ConfigError, SgformerError
from training.cli.events import EventWriter
from training.cli.options import SETTINGS, Options, RefreshOptions, TableOptions, TrainOptions, TuneOptions
from training.cli.refresh_command import refresh_model
from training.cli.terminal import STOPPED
from training.cli.train_command import train_model
from training.cli.tune_command import tune_settings
from training.fit.loop import Stopped
from training.paper import tables

__all__ = ["SETTINGS", "main", "train_parser"]
TUNE_HELP = """Search settings by validation scores and write the best as a recipe. Settings given as flags stay fixed.
The trials are stored: the same command continues a stopped search, and several processes may share one."""
REFRESH_HELP = "Publish a version's weights over new data, without training."


class Command(NamedTuple):
    parser: Callable[[], argparse.ArgumentParser]
    options: type[Options]
    run: Callable[[Any, EventWriter], int]


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = COMMANDS.get(words[0]) if words else None
    parse, options_type, run = command or Command(train_parser, TrainOptions, train_model)
    options = options_type.of(parse().parse_args(words[1:] if command else words))
    events = EventWriter(options.events, options.only_while)
    events.write(StartedEvent(pid=os.getpid()))
    if options.at_most:
        signal.alarm(options.at_most)  # the kernel ends the run, even if the process that started it has ended
    # Outside the training loop, which handles signals itself, SIGTERM raises and so removes half-written files.
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options, events)
    except (SgformerError, StoreError, OSError) as error:
        events.write(FailedEvent(error=str(error)))
        print(f"sgf-train: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except (KeyboardInterrupt, Stopped):
        events.write(StoppedEvent())
        print("sgf-train: interrupted", file=sys.stderr)
        return STOPPED
    except Exception as error:  # a bug: the event is for readers of the events file, the traceback for the log
        events.write(FailedEvent(error=f"{type(error).__name__}: {error}"))
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


def train_parser() -> argparse.ArgumentParser:
    return TrainOptions.parser("sgf-train", __doc__)


COMMANDS = {
    "refresh": Command(lambda: RefreshOptions.parser("sgf-train refresh", REFRESH_HELP), RefreshOptions, refresh_model),
    "table": Command(tables.parser, TableOptions, tables.run_table),
    "tune": Command(lambda: TuneOptions.parser("sgf-train tune", TUNE_HELP), TuneOptions, tune_settings),
}

if __name__ == "__main__":
    sys.exit(main())
