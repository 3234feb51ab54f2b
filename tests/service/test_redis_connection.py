"""Credentials of Redis, and what a failure says: the cause's own text, and never a password."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs.ledger import JobsUnavailable
from service.jobs.redis_ledger import RedisLedger
from service.predict.cache import RedisCache
from service.redis_connection import Backoff
from service.settings import Settings, SettingsError
from service.telemetry.metrics import Metrics
from tests.service.redis_server import RedisServer
from tests.service.serving import until, worker

PASSWORD = "a-secret-password"  # noqa: S105  # of a server of these tests


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """With a password for the default user, and the user `sgf`."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.client.acl_setuser("sgf", enabled=True, passwords=[f"+{PASSWORD}"], keys=["sgf:*"], categories=["+@all"])
    server.client.config_set("requirepass", PASSWORD)
    yield server
    server.kill()


def settings(url: str, password_file: Path | None = None) -> Settings:
    return Settings(redis_url=url, redis_password_file=password_file, redis_timeout_seconds=10.0)


def failures(where: Settings, caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """What the records of jobs raise, and what the cache logs."""
    with pytest.raises(JobsUnavailable) as raised:
        RedisLedger(where).jobs()
    caplog.clear()

    async def look_up() -> None:
        cache = RedisCache(where, Metrics())
        await cache.get("x")
        await cache.close()

    asyncio.run(look_up())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "service.predict.cache"]
    return str(raised.value), line


@pytest.mark.parametrize(
    ("credentials", "cause"),
    [
        ("", "NOAUTH HELLO must be called with the client already authenticated"),
        (":wrong-password@", "WRONGPASS invalid username-password pair or user is disabled."),
        ("sgf:wrong-password@", "WRONGPASS invalid username-password pair or user is disabled."),
    ],
)
def test_a_refused_connection_names_the_cause(
    server: RedisServer, caplog: pytest.LogCaptureFixture, credentials: str, cause: str
) -> None:
    raised, logged = failures(settings(f"redis://{credentials}{server.address}"), caplog)
    assert raised.startswith(f"Redis, which keeps the jobs, failed ({cause}")
    assert logged.startswith(f"Redis failed ({cause}")
    assert logged.endswith("; retrying in 0.25 s")
    assert "wrong-password" not in raised + logged


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (
            f"ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `sgf`, `{PASSWORD}`, ",
            "ERR unknown command `HELLO`",
        ),
        ("DENIED Redis is running in protected mode", "DENIED Redis is running in protected mode"),
    ],
)
def test_an_error_of_the_server_is_repeated_without_the_password(
    caplog: pytest.LogCaptureFixture, reply: str, cause: str
) -> None:
    """Redis before version 6, and proxies, do not know HELLO and quote its arguments. Protected mode needs no loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(f"-{reply}\r\n".encode())

        threading.Thread(target=serve, daemon=True).start()
        raised, logged = failures(settings(f"redis://sgf:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}"), caplog)
        listener.shutdown(socket.SHUT_RDWR)
    assert f"({cause})" in raised
    assert f"({cause})" in logged


def test_a_worker_with_wrong_credentials_logs_a_line_for_each_attempt_and_continues(
    server: RedisServer, tmp_path: Path
) -> None:
    with worker(tmp_path, f"redis://sgf:wrong-password@{server.address}") as running:
        until(lambda: len(running.lines) >= 2)
        assert running.process.poll() is None
    for line, seconds in zip(running.lines, ("1 s", "2 s"), strict=False):
        assert "Redis, which keeps the jobs, failed (WRONGPASS invalid username-password pair" in line
        assert f"retrying in {seconds}" in line
        assert "wrong-password" not in line


def test_the_wait_doubles_up_to_a_limit() -> None:
    backoff = Backoff(1.0, 30.0)
    assert [backoff.grow() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.reset()
    assert backoff.grow() == 1


def test_the_password_may_be_in_a_file(server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    for user in ("", "sgf@"):
        where = settings(f"redis://{user}{server.address}", file)
        assert RedisLedger(where).jobs() == []

        async def look_up(where: Settings) -> bool:
            cache = RedisCache(where, Metrics())
            await cache.get("x")
            await cache.close()
            return cache.available

        assert asyncio.run(look_up(where))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "the file cannot be read (No such file or directory)"),
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\xff\xfe", "the file cannot be read (it is not UTF-8)"),
    ],
)
def test_a_password_file_that_cannot_be_used_stops_the_start(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"SGF_REDIS_PASSWORD_FILE": str(file)})
    assert str(caught.value) == f"SGF_REDIS_PASSWORD_FILE is '{file}': {problem}"
