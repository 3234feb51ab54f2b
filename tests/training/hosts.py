"""Hosts as network namespaces, connected by a bridge: each has an address, a name and processes of its own. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PORT = 29_500


class Host:
    def __init__(self, prefix: str, number: int) -> None:
        self.name, self.space = f"host{number}", f"{prefix}-{number}"
        self.link, self.address = f"{prefix}v{number}", f"10.99.7.{number + 1}"

    def start(self, command: Sequence[str], **environ: str) -> subprocess.Popen[str]:
        """Runs a command on the host, with its output in one stream."""
        named = ["unshare", "--uts", "sh", "-c", f'hostname {self.name}; exec "$@"', "sh", *command]
        inside = ["ip", "netns", "exec", self.space, *named]
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(inside, env=os.environ | environ, start_new_session=True, **pipe)

    def connect(self, connected: bool) -> None:
        """Plugs the cable in, or pulls it: packets are lost without an error, as with a switch that fails."""
        _ip("link", "set", self.link, "up" if connected else "down")

    def stop(self) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def processes(self) -> list[int]:
        return [int(process) for process in _ip("netns", "pids", self.space, check=False).stdout.split()]


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    prefix = f"sgf{os.getpid() % 10_000}"
    machines, bridge = [Host(prefix, number) for number in range(count)], f"{prefix}b"
    names = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in machines)
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in machines:
            (folder := Path("/etc/netns") / host.space).mkdir(parents=True)
            (folder / "hosts").write_text(names)
            _ip("netns", "add", host.space)
            _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.space)
            _ip("link", "set", host.link, "master", bridge, "up")
            _ip("-n", host.space, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.space, "link", "set", device, "up")
        yield machines
    finally:
        for host in machines:
            host.stop()
            _ip("netns", "delete", host.space, check=False)
            shutil.rmtree(Path("/etc/netns") / host.space, ignore_errors=True)
        _ip("link", "delete", bridge, check=False)


def problem() -> str | None:
    """Why there can be no hosts here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    missing = [program for program in ("ip", "unshare") if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} is not installed (iproute2, util-linux)"
    tried = _ip("netns", "add", "sgf-try", check=False)
    if tried.returncode:
        return f"ip netns add fails: {tried.stderr.strip()}"
    _ip("netns", "delete", "sgf-try")
    return None


def torchrun(machines: Sequence[Host], words: Sequence[str], *, restarts: int = 0, **environ: str) -> list[Any]:
    """Starts a training on every host, with one process each."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(machines)}", "--nproc-per-node=1"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={machines[0].name}:{PORT}", "--rdzv-id=test"]
    launcher += [f"--max-restarts={restarts}", "--rdzv-conf=join_timeout=60,read_timeout=5", "--monitor-interval=0.2"]
    launcher += words
    return [host.start(launcher, OMP_NUM_THREADS="1", **environ) for host in machines]


def finish(runs: Sequence[subprocess.Popen[str]], seconds: float) -> tuple[list[int], str]:
    """The exit codes and the output of all hosts. Raises AssertionError if a run goes on for longer."""
    end = time.monotonic() + seconds
    parts = []
    for run in runs:
        try:
            parts.append(run.communicate(timeout=max(1.0, end - time.monotonic()))[0])
        except subprocess.TimeoutExpired as error:
            shown = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout
            raise AssertionError(f"a host has not ended within {seconds:g} s; its output: {shown}") from None
    output = "".join(parts)
    return [run.returncode for run in runs], output


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    program = shutil.which("ip") or "ip"
    return subprocess.run([program, *words], check=check, capture_output=True, text=True)
