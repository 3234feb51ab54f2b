"""A child process that computes expensive questions from the same memory-mapped snapshot.

A thread would do, but its numpy calls hold the interpreter for milliseconds, in which the event loop answers nothing. The
process starts with the first expensive question and has a low priority. If it is killed, a new one computes the question
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
from typing import Any

from service.engines.engine import engine_for
from service.engines.served_model import ServedModel
from service.predict.results import NodeResults
from service.predict.rows import Rows, compute
from service.settings import Backend

LOG = logging.getLogger("service.predict.compute_process")
NICENESS = 19
LENGTH = struct.Struct("<Q")
START = "import sys; sys.path[:] = sys.argv[1:]; from service.predict.compute_process import main; main()"


class ComputeProcessError(Exception):
    """The process ended twice while it computed the same questions."""


class ComputeProcess:
    """Computes one batch at a time. Used by one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def compute(self, model: ServedModel, questions: Sequence[Rows]) -> list[NodeResults | Exception]:
        """As `rows.compute`, which the process calls. Raises ComputeProcessError."""
        # Pickles travel between our own processes only.
        message = pickle.dumps((model.snapshot.folder, model.version, model.engine.backend, questions))
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
                LOG.warning("the compute process ended with status %s while it computed", status)
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
    """Computes what arrives on standard input, a socket, until the worker closes it or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the worker ends this one
    os.nice(NICENESS)
    model: ServedModel | None = None
    with socket.socket(fileno=0) as connection, connection.makefile("rwb") as stream:
        while header := stream.read(LENGTH.size):
            message = pickle.loads(stream.read(*LENGTH.unpack(header)))  # noqa: S301
            try:
                model = _opened(model, *message[:3])
                answers = compute(model, message[3])
            except Exception as error:  # the worker raises it for the requests
                answers = [error] * len(message[3])
            data = pickle.dumps([_packed(answer) for answer in answers])
            stream.write(LENGTH.pack(len(data)) + data)
            stream.flush()


def _opened(model: ServedModel | None, folder: Any, version: int, backend: Backend) -> ServedModel:
    """The version in the folder, which the worker has verified and keeps open while it waits for the answer."""
    from model_store import Snapshot

    if model is not None and model.snapshot.folder == folder:
        return model
    with Snapshot.open(folder, verify="sizes") as snapshot:  # mapped arrays stay readable; pruning need not wait for us
        return ServedModel(version, snapshot, engine_for(snapshot, backend, "cpu"), {})


def _packed(answer: NodeResults | Exception) -> Any:
    """Exceptions as parts: pickle would call their constructors with other arguments than ours take."""
    return (type(answer), answer.args, answer.__dict__) if isinstance(answer, Exception) else answer


def _restored(answer: Any) -> NodeResults | Exception:
    if isinstance(answer, NodeResults):
        return answer
    kind, arguments, attributes = answer
    error: Exception = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error
