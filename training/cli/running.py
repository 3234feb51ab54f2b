"""Runs a command of `sgf-train` in this process or in several, and turns errors into messages, events and exit codes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from model_store import StoreError
from model_store.cli.terminal import INTERRUPTED
from model_store.run_contract import FailedEvent, StartedEvent, StoppedEvent
from sgformer import ConfigError, SgformerError
from training.cli.events import EventWriter
from training.cli.launching import follow_launcher, is_first, is_launched, launch, only_first_prints, report
from training.cli.options import Options
from training.cli.threads import limit_threads

Run = Callable[[Any, EventWriter], int]


def start_command(run: Run, options: Options, words: Sequence[str]) -> int:
    """Returns the exit code. `words`: those of the command line, for the processes that share the command."""
    if options.processes > 1 and not is_launched():
        return launch(words, options.processes, options.events)
    if is_launched():
        follow_launcher()
    limit_threads(options.jobs)  # before torch is imported
    return _run(run, options)


def _run(run: Run, options: Options) -> int:
    """Runs a command, in the only process or in one of several, of which the first writes events and errors."""
    events = EventWriter(options.events, options.only_while) if is_first() else EventWriter()
    events.write(StartedEvent(pid=os.getpid()))
    if options.kill_after:
        signal.alarm(options.kill_after)  # the kernel ends the run, even if the process that started it has ended
    # Outside the training loop, which handles signals itself, SIGTERM raises and so removes half-written files.
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with only_first_prints():
            return run(options, events)
    except (SgformerError, StoreError, OSError) as error:
        events.write(FailedEvent(error=str(error)))
        report(error)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        events.write(StoppedEvent())
        report("interrupted")
        return INTERRUPTED
    except Exception as error:  # a bug: the event is for readers of the events file, the traceback for the log
        events.write(FailedEvent(error=f"{type(error).__name__}: {error}"))
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
