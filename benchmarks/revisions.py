"""Compares /predict of the present code with another revision and with the empty endpoint, in one run.

    python -m benchmarks.revisions 9efca01

The other revision runs from a temporary worktree, in the same environment, with a model that it published itself. The CPU
time per answer depends less on other work of the machine than the rate does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from benchmarks.servers import Server, floor, free_port, running, service, take_turns
from benchmarks.workload import SMALL, known_nodes, new_nodes, publish

ROOT = Path(__file__).parent.parent
QUESTIONS = {"known node": known_nodes(1), "100 known nodes": known_nodes(100), "exact new node": new_nodes(SMALL)}


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", path, revision], cwd=ROOT, check=True)  # noqa: S607
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", path], cwd=ROOT, check=True)  # noqa: S607


def service_of(code: Path, store: str) -> AbstractContextManager[Server]:
    """The service of another revision, with a model that it publishes."""
    environ, port = os.environ | {"PYTHONPATH": str(code), "SGF_CACHE_BYTES": "0"}, free_port()
    program = f"from benchmarks.workload import publish; publish({store!r}, {SMALL})"
    subprocess.run([sys.executable, "-c", program], cwd=code, env=environ, check=True)
    command = [sys.executable, "-m", "service", "--store", store, "--port", str(port)]
    return running(command, port, environ, folder=str(code))


def compare(servers: dict[str, Server]) -> None:
    for name, bodies in QUESTIONS.items():
        before = {key: server.cpu_seconds() for key, server in servers.items()}
        loads = take_turns({key: (server, bodies) for key, server in servers.items()})
        for key, server in servers.items():
            answers = loads[key].statuses[200]
            micros = 1e6 * (server.cpu_seconds() - before[key]) / answers
            ratio = loads[key].rate / loads["empty endpoint"].rate
            print(f"{name}, {key}: {loads[key]}; {ratio:.2f}x of the empty endpoint; {micros:.0f} us of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a revision of git, such as a commit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, worktree(options.revision) as code, ExitStack() as stack:
        store = publish(f"{folder}/present", SMALL)
        servers = {
            options.revision: stack.enter_context(service_of(code, f"{folder}/other")),
            "present code": stack.enter_context(service(store)),
            "empty endpoint": stack.enter_context(floor(store)),
        }
        compare(servers)


if __name__ == "__main__":
    main()
