"""The load generator of these benchmarks against h2load (Debian package nghttp2-client), on the same server."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile

import numpy as np

from benchmarks.load import closed
from benchmarks.results import Result, at_least
from benchmarks.servers import Server, floor, service, serving
from benchmarks.workload import SMALL, known_nodes

CONNECTIONS, SECONDS, ROUNDS = 64, 3.0, 5
BAR = 0.9


def generators() -> list[Result]:
    if not shutil.which("h2load"):
        raise SystemExit("h2load is not installed: it is in the Debian package nghttp2-client")
    body = known_nodes(1)[0]
    with serving(SMALL, {"known node": service, "empty endpoint": floor}) as servers:
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                ours = closed(server.port, server.requests([body]), CONNECTIONS, SECONDS).rate
                rates[name].append((ours, _h2load_rate(server, body)))
    return [_row(name, pairs) for name, pairs in rates.items()]


def _row(name: str, pairs: list[tuple[float, float]]) -> Result:
    ours, theirs = (float(np.median(rates)) for rates in zip(*pairs, strict=True))
    claim = f"{name}, {CONNECTIONS} connections: answers per second that our generator gets, against h2load"
    return at_least(claim, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, BAR)


def _h2load_rate(server: Server, body: bytes) -> float:
    """Returns the responses with a 2xx status per second."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        load = ["h2load", "--h1", "-t", "1", "-c", str(CONNECTIONS), "-D", str(round(SECONDS)), "-d", file.name]
        command = [*load, "-H", "content-type: application/json", f"http://127.0.0.1:{server.port}{server.dialect.path}"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, answers = re.search(r"finished in ([\d.]+)s", report), re.search(r"status codes: (\d+) 2xx", report)
    if not seconds or not answers:
        raise SystemExit(f"the output of h2load has no duration or status counts: {report}")
    return int(answers[1]) / float(seconds[1])
