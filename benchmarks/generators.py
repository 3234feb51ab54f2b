"""The load generator of these benchmarks against h2load (Debian package nghttp2-client), on the same server."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.http import SMALL, floor, known, publish, service
from benchmarks.load import closed
from benchmarks.result import Result
from benchmarks.servers import Server

CONNECTIONS, SECONDS, ROUNDS = 64, 3.0, 5
BAR = 0.9


def generators() -> list[Result]:
    if not shutil.which("h2load"):
        raise SystemExit("h2load is not installed: it is in the Debian package nghttp2-client")
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        store = publish(f"{root}/models", SMALL)
        servers = {
            "known node": stack.enter_context(service(store)),
            "empty endpoint": stack.enter_context(floor("floor", store)),
        }
        body = Path(root) / "body.json"
        body.write_bytes(known(1)[0])
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                rates[name].append((_ours(server, body), _h2load(server, body)))
    return [_row(name, pairs) for name, pairs in rates.items()]


CONTESTS: tuple[Callable[[], list[Result]], ...] = (generators,)


def _row(name: str, pairs: list[tuple[float, float]]) -> Result:
    ours, theirs = (float(np.median(rates)) for rates in zip(*pairs, strict=True))
    claim = f"{name}, {CONNECTIONS} connections: answers per second that our generator gets, against h2load"
    return Result(claim, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, f">= {BAR:g}x", ours / theirs >= BAR)


def _ours(server: Server, body: Path) -> float:
    return closed(server.port, server.requests([body.read_bytes()]), CONNECTIONS, SECONDS).rate


def _h2load(server: Server, body: Path) -> float:
    """Answers with a 2xx status per second."""
    load = ["h2load", "--h1", "-t", "1", "-c", str(CONNECTIONS), "-D", str(round(SECONDS)), "-d", str(body)]
    command = [*load, "-H", "content-type: application/json", f"http://127.0.0.1:{server.port}{server.dialect.path}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, answers = re.search(r"finished in ([\d.]+)s", told), re.search(r"status codes: (\d+) 2xx", told)
    if not seconds or not answers:
        raise SystemExit(f"h2load reported something else than expected: {told}")
    return int(answers[1]) / float(seconds[1])
