"""A child process that computes expensive batches from the same memory-mapped snapshot.

It is no thread, because numpy calls may hold the interpreter lock for milliseconds, in which the event loop cannot run. The
process starts with the first expensive batch and has a low priority. If it is killed, a new process computes the batch
again, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from model_store import StoreUnavailable
from model_store.graph_log import LogAddress
from service.engines.engine import engine_for
from service.engines.served_model import ServedModel
from service.predict.results import PartialResults
from service.predict.rows import compute
from service.settings import Backend

LOG = logging.getLogger("service.predict.compute_process")
NICENESS = 19
SLICE_RECORDS = 256
LENGTH = struct.Struct("<Q")
START = "import sys; sys.path[:] = sys.argv[1:]; from service.predict.compute_process import main; main()"


class ComputeProcessError(Exception):
    """The process ended twice while it computed the same batch."""


class ComputeProcess:
    """Computes one batch at a time. Used by one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def compute(self, model: ServedModel, batch: Sequence[Any]) -> list[Any]:
        """Calls `rows.compute` in the process: one result or exception per element of the batch. The elements are of one
        class, which has a static method `compute(model, batch)`. Raises ComputeProcessError.
        """
        backend = model.engine.backend or "numpy"  # torch has none: such a batch reads the live graph, with numpy
        # A pickle is safe here: only our own processes exchange them.
        message = pickle.dumps(((model.snapshot.folder, model.version, backend, model.log), model.sequence, batch))
        for _attempt in range(2):
            if self._process is None:
                await self._start()
            try:
                self._writer.write(LENGTH.pack(len(message)) + message)
                await self._writer.drain()
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                return [_restored(answer) for answer in pickle.loads(await self._reader.readexactly(length))]  # noqa: S301
            except (asyncio.IncompleteReadError, ConnectionError):
                status = self.stop()
                LOG.warning("the compute process ended with status %s during a batch", status)
        raise ComputeProcessError

    def stop(self) -> int | None:
        """Ends the process, if there is one, and returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        self._writer.close()
        process.kill()
        return process.wait()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:  # not `-m`: a folder named `service` in the current directory must not be found first
            self._process = subprocess.Popen([sys.executable, "-c", START, *sys.path], stdin=theirs.fileno())  # noqa: S603
        self._reader, self._writer = await asyncio.open_connection(sock=ours)


def main() -> None:
    """Computes the batches that arrive on standard input, a socket, until the worker closes it or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the worker ends this one
    os.nice(NICENESS)
    opened: OpenedVersion | None = None
    with socket.socket(fileno=0) as connection, connection.makefile("rwb") as stream:
        while header := stream.read(LENGTH.size):
            source, sequence, batch = pickle.loads(stream.read(*LENGTH.unpack(header)))  # noqa: S301
            try:
                if opened is None or opened.source != source:
                    opened = OpenedVersion(source)
                opened.follow(sequence)
                answers = compute(opened.model, batch)
            except Exception as error:  # the worker raises it again
                opened, answers = None, [error] * len(batch)  # a change may have been applied in part
            data = pickle.dumps([_packed(answer) for answer in answers])
            stream.write(LENGTH.pack(len(data)) + data)
            stream.flush()


class OpenedVersion:
    """A version and its live graph. The worker has verified the version, and keeps it open while it waits for results."""

    def __init__(self, source: tuple[Path, int, Backend, LogAddress]) -> None:
        from model_store import Snapshot

        self.source = folder, version, backend, log = source
        with Snapshot.open(folder, verify="sizes") as snapshot:  # mapped arrays stay readable, and pruning need not wait
            self.model = ServedModel(version, snapshot, engine_for(snapshot, backend, "cpu"), {}, log)
        self._log = log.open()

    def follow(self, sequence: int) -> None:
        """Applies the changes up to `sequence`, the last change that the worker has applied. Raises StoreError."""
        live = self.model.live
        while (behind := sequence - live.position.sequence) > 0:
            records = self._log.read(live.position.sequence, min(behind, SLICE_RECORDS))
            if not records:
                raise StoreUnavailable(f"the graph log ends at sequence {live.position.sequence}, expected {sequence}")
            live.follow(records)


class PackedError(NamedTuple):
    """The parts of an exception: pickle would call its constructor with `args` only, which our exceptions do not accept."""

    kind: type[Exception]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]


def _packed(answer: Any) -> Any:
    if isinstance(answer, PartialResults):
        return answer._replace(errors={position: _packed(error) for position, error in answer.errors.items()})
    return PackedError(type(answer), answer.args, answer.__dict__) if isinstance(answer, Exception) else answer


def _restored(answer: Any) -> Any:
    if isinstance(answer, PartialResults):
        return answer._replace(errors={position: _restored(error) for position, error in answer.errors.items()})
    if not isinstance(answer, PackedError):
        return answer
    error = answer.kind.__new__(answer.kind, *answer.arguments)
    error.__dict__.update(answer.attributes)
    return error
