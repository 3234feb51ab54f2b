"""Publishers killed at random moments: the store stays readable, has a valid live version, and loses no version.

20 kills, or 200 in `make soak` (SGF_KILLS).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from model_store import ModelVersions, Store
from tests.model_store.samples import publish

KILLS = int(os.environ.get("SGF_KILLS", "20"))


class Publishers:
    """Starts and kills processes that publish and activate versions in a loop, one process at a time."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "tests.model_store.versions.zygote", str(root)]
        self._zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._started, self._activated, self._dead = threading.Event(), threading.Event(), threading.Event()
        self._pid = 0
        self.published: set[int] = set()
        self.activated: list[int] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def live_for(self, seconds: float | None = None) -> float:
        """Starts a publisher and kills it after some seconds, or after its first activation.

        Returns its lifetime in seconds.
        """
        for event in (self._started, self._dead, self._activated):
            event.clear()
        assert self._zygote.stdin is not None
        print("start", file=self._zygote.stdin, flush=True)
        assert self._started.wait(60)
        began = time.monotonic()
        if seconds is None:
            assert self._activated.wait(60)
        else:
            threading.Event().wait(seconds)
        lived = time.monotonic() - began
        os.kill(self._pid, signal.SIGKILL)
        assert self._dead.wait(60)
        return lived

    def close(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait(60)
        self._reader.join(60)
        assert self._zygote.stdout is not None
        self._zygote.stdout.close()

    def _read(self) -> None:
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            word, _, number = line.partition(" ")
            if word == "pid":
                self._pid = int(number)
                self._started.set()
            elif word == "published":
                self.published.add(int(number))
            elif word == "activated":
                self.activated.append(int(number))
                self._activated.set()
            else:
                self._dead.set()


def check(versions: ModelVersions, publishers: Publishers, checked: set[int]) -> None:
    """Checks that every version is valid, that no published version is lost, and that the live version answers."""
    there = versions.versions()
    assert publishers.published <= set(there)
    live = versions.live()
    assert live is not None
    assert live >= max(publishers.activated, default=1)
    assert versions.history().entries[-1].version == live
    for version in {*there, live} - checked | {live}:
        versions.verify(version)
    checked |= set(there)


def test_killed_publishers_leave_the_store_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path)
    publish(store, activate=True)
    versions, publishers, checked = store.model("demo"), Publishers(tmp_path), set[int]()
    moments = random.Random(0)  # noqa: S311  # moments, not secrets
    interrupted = 0
    try:
        usual = publishers.live_for()  # depends on the load of this machine
        for _ in range(KILLS):
            publishers.live_for(moments.uniform(0, 1.5 * usual))
            check(versions, publishers, checked)
            interrupted += any(versions.folder.glob(".publishing-*.lock"))
    finally:
        publishers.close()
    assert interrupted > 0, "no kill interrupted a publication: nothing was tested"
    versions.prune(keep=len(checked))
    assert [path.name for path in versions.folder.glob(".*")] == [".lock"]
