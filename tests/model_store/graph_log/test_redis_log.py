"""What only the log in Redis has: the durability that Redis confirms, lost data, and a connection that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from model_store.errors import Behind, Fenced, LogError, StoreUnavailable
from model_store.graph_log.redis_log import RedisLog
from tests.model_store.graph_log.logs import append, read_all
from tests.service.redis_server import RedisServer

STREAM, STATE = "sgf:graph:{demo:g}:log", "sgf:graph:{demo:g}:state"
AOF = ("--appendonly", "yes")


def has_waitaof(server: RedisServer) -> bool:
    major, minor = map(int, server.client.info("server")["redis_version"].split(".")[:2])
    return (major, minor) >= (7, 2)


@pytest.fixture
def redis_log(redis_server: RedisServer) -> Iterator[RedisLog]:
    redis_server.client.flushall()
    yield connect(redis_server)
    redis_server.client.config_set("maxmemory", 0)


def connect(server: RedisServer, **options: str) -> RedisLog:
    client = redis.Redis(port=server.port, socket_timeout=5, retry=Retry(NoBackoff(), 1), **options)
    return RedisLog(client, "demo:g", lease_seconds=0.5)


@pytest.mark.parametrize(
    ("options", "promised", "confirmed"),
    [
        ((), "memory", "memory"),
        ((*AOF, "--appendfsync", "always"), "aof-always", "aof"),
        ((*AOF, "--appendfsync", "everysec"), "aof-everysec", "aof"),
        ((*AOF, "--appendfsync", "no"), "aof-no", "aof-no"),
    ],
)
def test_the_durability_is_what_redis_gave(
    tmp_path: Path, options: tuple[str, ...], promised: str, confirmed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 7.2 and later confirm a flush (WAITAOF). With appendfsync no, none comes within the time limit."""
    monkeypatch.setattr("model_store.graph_log.redis_log.WAITAOF_SECONDS", 2.5 if "no" not in options else 0.2)
    server = RedisServer(tmp_path, *options)
    try:
        log = connect(server)
        assert log.durability == "unknown"
        append(log, b"first")
        assert log.durability == (confirmed if has_waitaof(server) else promised)
        append(log, b"second")
        assert log.durability == (confirmed if has_waitaof(server) else promised)
    finally:
        server.kill()


def test_waitaof_is_understood() -> None:
    """The answers of Redis 7.2, for machines whose redis-server is older."""
    log = RedisLog(None, "demo:g")
    settings = {b"appendonly": b"yes", b"appendfsync": b"everysec"}
    assert log._durability_of([[1, 0]], settings) == "aof"
    assert log._durability_of([[0, 0]], settings) == "aof-everysec"
    assert log._durability_of([redis.ResponseError("WAITAOF cannot be used when ...")], {"appendonly": "no"}) == "memory"
    assert log._durability_of([redis.ResponseError("NOPERM")], redis.ResponseError("NOPERM")) == "memory"


def test_a_user_without_config_gets_no_promise(redis_server: RedisServer, redis_log: RedisLog) -> None:
    """The commands are those of docs/graph_log.md."""
    page = (Path(__file__).parents[3] / "docs" / "graph_log.md").read_text()
    commands = re.findall(r"\+[a-z|]+", page[page.index("`+eval") :].partition("\n\n")[0])
    commands = [name for name in commands if name != "+config|get" and (name != "+waitaof" or has_waitaof(redis_server))]
    redis_server.client.execute_command("ACL", "SETUSER", "sgf", "on", ">secret", "~sgf:*", *commands)
    log = connect(redis_server, username="sgf", password="secret")  # noqa: S106
    append(log, b"first", keys=["a"])
    assert log.durability == "memory"
    assert not log.wait(1, seconds=0.01)
    assert log.find("a") is not None
    assert log.size_bytes > 0
    assert log.prune(1) == 2


def test_records_that_redis_lost_are_an_error(redis_server: RedisServer, redis_log: RedisLog) -> None:
    """A process that has read them notices it, also after others were appended in their place."""
    followers = [connect(redis_server) for _ in range(2)]
    append(redis_log, b"first", b"second")
    assert [follower.position().sequence for follower in followers] == [2, 2]
    redis_server.client.flushall()
    with pytest.raises(LogError, match=r"at sequence 0: the log ends here, expected at least sequence 2: Redis has lost"):
        followers[0].position()
    append(connect(redis_server), b"other", b"records")
    with pytest.raises(LogError, match=r"at sequence 2: the record is not the one that was read"):
        followers[0].position()
    append(connect(redis_server), b"and more")
    with pytest.raises(LogError, match=r"at sequence 3: the hash of the record"):
        followers[1].position()


@pytest.mark.parametrize(
    ("replacement", "problem"),
    [(None, "the record is missing"), (b"short", "too few for a record"), (b"\0" * 100, "cannot have 0 bytes")],
)
def test_a_damaged_record_is_an_error(
    redis_server: RedisServer, redis_log: RedisLog, replacement: bytes | None, problem: str
) -> None:
    append(redis_log, b"first", b"second")
    (_, first), _ = redis_server.client.xrange(STREAM)
    redis_server.client.delete(STREAM)
    redis_server.client.xadd(STREAM, first, id="1-0")
    if replacement is not None:
        redis_server.client.xadd(STREAM, {"r": replacement}, id="2-0")
    with pytest.raises(LogError, match=rf"^{STREAM} at sequence 2: .*{problem}"):
        read_all(connect(redis_server))


def test_a_command_that_the_client_sends_again_appends_once(redis_log: RedisLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client does so if the connection fails before the answer came."""
    append_once = redis_log.append

    def append_twice(*arguments: object) -> str:
        append_once(*arguments)
        return append_once(*arguments)

    monkeypatch.setattr(redis_log, "append", append_twice)
    append(redis_log, b"first", b"second")
    append(redis_log, b"third")
    assert len(read_all(redis_log)) == 3


def test_the_script_refuses_a_stale_writer(redis_server: RedisServer, redis_log: RedisLog) -> None:
    """Both conditions, without the checks that the process makes before."""
    append(redis_log, b"first")
    stale = redis_log.tail
    assert stale is not None
    with redis_log.writer(1) as writer:
        append_elsewhere = connect(redis_server)
        redis_server.client.delete("sgf:graph:{demo:g}:lease")  # as if it had expired
        append(append_elsewhere, b"second")
        with pytest.raises(Fenced):
            writer.append([("", b"late")], expected=1)
        writer.fencing_number += 1
        with pytest.raises(Behind):
            writer.append([("", b"late")], expected=1)
    assert [record.payload for record in read_all(connect(redis_server))] == [b"first", b"second"]


def test_a_full_redis_refuses_the_whole_group(redis_server: RedisServer, redis_log: RedisLog) -> None:
    append(redis_log, b"first")
    with redis_log.writer(1) as writer:
        redis_server.client.config_set("maxmemory", "1mb")
        with pytest.raises(StoreUnavailable, match=r"refused to append .*used memory.*; nothing was appended"):
            writer.append([("a", b"x"), ("b", b"y")], expected=1)
        redis_server.client.config_set("maxmemory", 0)
        assert len(writer.append([("a", b"x"), ("b", b"y")], expected=1)) == 2
    assert len(read_all(connect(redis_server))) == 3


def test_a_redis_that_is_down_is_unavailable_and_comes_back(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, *AOF, "--appendfsync", "always")
    try:
        log = connect(server)
        with log.writer(1) as writer:
            writer.append([("a", b"first")], expected=0)
            server.kill()
            with pytest.raises(StoreUnavailable, match=r"Redis, which keeps the graph log, failed .*may or may not"):
                writer.append([("b", b"second")], expected=1)
        with pytest.raises(StoreUnavailable, match="try again later"):
            log.position()
        server.start()
        assert [record.key for record in append(log, b"first", b"second", keys=["a", "b"])] == ["a", "b"]
        assert log.position().sequence == 2
    finally:
        server.kill()
