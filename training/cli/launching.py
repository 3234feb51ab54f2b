"""`--processes N`: starts the command again in N processes, by torch's launcher (torchrun).

For several machines, start torchrun on each of them: torchrun ... -m training ARGUMENTS.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from model_store.cli.terminal import INTERRUPTED, print_error
from model_store.run_contract import FailedEvent
from training.cli.events import EventWriter
from training.cli.threads import limit_threads

PR_SET_PDEATHSIG = 1
LOWEST_PRIORITY = 19
PUBLISHED = "a version is published completely or not at all (sgf-models list)"
"""Said if rank 0 was killed: it may have published a version before."""
RESUME = "the same command with --resume continues a training from its last checkpoint"


def is_launched() -> bool:
    """True in a process that torchrun has started."""
    return "TORCHELASTIC_RUN_ID" in os.environ or "WORLD_SIZE" in os.environ


def follow_launcher() -> None:
    """Call this in a process that torchrun has started. The process dies with torchrun, and runs at its priority.

    torchrun starts every process in a session of its own, which a signal to the process group of torchrun does not reach,
    and to which Linux gives as much CPU time as to any other session (autogroup).
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getpriority(os.PRIO_PROCESS, 0) == LOWEST_PRIORITY:
        with suppress(OSError):  # a kernel without autogroup
            Path("/proc/self/autogroup").write_text(str(LOWEST_PRIORITY))


def launch(words: Sequence[str], processes: int, events: Path | None) -> int:
    """Runs `sgf-train WORDS` in several processes of this machine. Returns the exit code of the first that failed, or 0.

    `events`: the events file of the run, for the event of a process that was killed and could not write it.
    """
    limit_threads(processes)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its tables repeat what is printed below
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        run_id="sgf-train",
        monitor_interval=0.2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "training", *words)
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return int(failure.exitcode)  # the process has printed why
        name = signal.Signals(-failure.exitcode).name
        reason = f"rank {number} was killed by {name}, and the run has ended"
        EventWriter(events).write(FailedEvent(error=reason))
        print_error("sgf-train", f"{reason}: {'nothing was published' if number else PUBLISHED}; {RESUME}")
        return 1
    except SignalException:
        return INTERRUPTED
    return 0


def is_first() -> bool:
    """True for a single process, and for rank 0 of several."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def only_first_prints() -> Iterator[None]:
    """The other processes compute the same results: their output is discarded."""
    if is_first():
        yield
        return
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        yield


def report(error: object) -> None:
    """Prints an error.

    All processes of a machine find the same errors of a user, and the first process of each machine
    prints them: data may be missing on one machine only. Errors that a single process can have are always printed.
    """
    if is_first():
        print_error("sgf-train", error)
        return
    from training.fit.processes import LostProcessError  # loads torch, which the process has loaded by now

    if os.environ.get("LOCAL_RANK", "0") == "0" or isinstance(error, OSError | LostProcessError):
        print_error("sgf-train", f"rank {os.environ['RANK']}: {error}")
