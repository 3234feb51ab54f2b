"""A log in Redis Streams, for several machines.

sgf:graph:{<name>}:log     the stream; the id of a record is <sequence>-0, its only field holds the bytes (`record`)
sgf:graph:{<name>}:state   sequence and hash of the last record; start and start_hash: sequence and hash of the last pruned
                           record; fencing_number of the last lease
sgf:graph:{<name>}:lease   exists while a writer holds the lease; expires `lease_seconds` after the writer's last append

The expiry decides only when another writer may try. Whether a group is appended is decided by the script APPEND, which
compares the fencing number and the last record with those of the writer: if another writer took over, the number is higher.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis import RedisError, ResponseError

from model_store.errors import Behind, Fenced, LogError, RecordsPruned, StoreBusy, StoreUnavailable
from model_store.graph_log.log import BATCH, MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS, Cursor, GraphLog, Writer
from model_store.graph_log.record import Damaged, Position, Record, decode, stored_hash

LEASE_SECONDS = 3.0
WAITAOF_SECONDS = 1.5
"""With appendfsync everysec, the flush comes within about a second."""
BLOCK_SECONDS = 1.0
"""The longest time that a reader blocks. The `socket_timeout` of the client must exceed this and WAITAOF_SECONDS."""

ACQUIRE = """
if not redis.call('set', KEYS[2], 'held', 'NX', 'PX', ARGV[1]) then return 0 end
return redis.call('hincrby', KEYS[1], 'fencing_number', 1)
"""
RELEASE = """
if redis.call('hget', KEYS[1], 'fencing_number') == ARGV[1] then redis.call('del', KEYS[2]) end
"""
APPEND = """
local fencing_number, lease_ms, sequence, hash, last, last_hash = unpack(ARGV, 1, 6)
local state = redis.call('hmget', KEYS[1], 'fencing_number', 'sequence', 'hash')
if state[2] == last and state[3] == last_hash then return 'appended' end  -- the client sent the command again
if state[1] ~= fencing_number then return 'fenced' end
if (state[2] or '0') ~= sequence or (state[3] or hash) ~= hash then return 'behind' end
for i = 7, #ARGV do
    redis.call('xadd', KEYS[3], string.format('%.0f-0', sequence + i - 6), 'r', ARGV[i])
end
redis.call('hset', KEYS[1], 'sequence', last, 'hash', last_hash)
redis.call('set', KEYS[2], 'held', 'PX', lease_ms)
return 'appended'
"""
PRUNE = """
if tonumber(redis.call('hget', KEYS[1], 'start') or '0') >= tonumber(ARGV[1]) then return end
redis.call('hset', KEYS[1], 'start', ARGV[1], 'start_hash', ARGV[2])
redis.call('xtrim', KEYS[3], 'MINID', string.format('%.0f-0', ARGV[1] + 1))
"""


class RedisLog(GraphLog):
    """`durability` describes the last append of this process (`_durability_of`); "unknown" before the first append."""

    def __init__(self, client: Any, name: str, *, lease_seconds: float = LEASE_SECONDS) -> None:
        """
        Args:
            client: a `redis.Redis` that does not decode responses. The caller closes it.
            name: names the graph: "<model>:<graph id>".
            lease_seconds: another writer takes over if the holder of the lease has not appended for this time.
        """
        super().__init__()
        self.client, self._name, self.lease_ms = client, name, round(1000 * lease_seconds)
        self._stream = f"sgf:graph:{{{name}}}:log"
        self._keys_of_scripts = (f"sgf:graph:{{{name}}}:state", f"sgf:graph:{{{name}}}:lease", self._stream)
        self._has_waitaof = True
        self.durability = "unknown"

    @contextmanager
    def writer(self, timeout: float) -> Iterator[RedisWriter]:
        self.follow_first()
        writer = RedisWriter(self, self._acquire(timeout))
        try:
            self.follow()
            yield writer
        finally:
            with suppress(StoreUnavailable):  # then the lease expires
                self._run(RELEASE, writer.fencing_number)

    def _acquire(self, timeout: float) -> int:
        end, pause = time.monotonic() + timeout, MIN_PAUSE_SECONDS
        while not (fencing_number := int(self._run(ACQUIRE, self.lease_ms))):
            if time.monotonic() >= end:
                raise StoreBusy(f"the lease of the graph log {self._name} was not free for {timeout:g} s; try again")
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        return fencing_number

    def wait(self, after: int, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self.position().sequence <= after:
            if (left := end - time.monotonic()) <= 0:
                return False
            block_ms = max(1, round(1000 * min(left, BLOCK_SECONDS)))
            with _redis_errors():
                self.client.xread({self._stream: f"{after}-0"}, count=1, block=block_ms)
        return True

    def prune(self, through: int) -> int:
        last = min(through, self.position().sequence)
        if last > self.start().position.sequence:
            self._run(PRUNE, last, self.cursor_at(last).position.hash)
        return self.start().position.sequence + 1

    def remove(self) -> None:
        with _redis_errors():
            self.client.delete(*self._keys_of_scripts)

    @property
    def size_bytes(self) -> int:
        with _redis_errors():
            return int(self.client.memory_usage(self._stream, samples=0) or 0)

    def close(self) -> None:
        """The client belongs to the caller."""

    def start(self) -> Cursor:
        return Cursor(self._state()[1])

    def cursor_at(self, sequence: int) -> Cursor:
        last, start = self._state()
        if sequence == start.sequence:
            return Cursor(start)
        self._check_range(sequence, last.sequence, start.sequence)
        return Cursor(Position(sequence, stored_hash(self._range(sequence, 1)[0])))

    def batch(self, cursor: Cursor, limit: int) -> tuple[list[tuple[Cursor, Record]], Cursor]:
        last, start = self._state()
        sequence = cursor.position.sequence
        self._check_range(sequence, last.sequence, start.sequence)
        if sequence == last.sequence:
            if cursor.position != last:
                raise self._error(sequence, "the record is not the one that was read: records were lost and replaced")
            return [], cursor
        records = []
        for data in self._range(sequence + 1, min(limit, BATCH, last.sequence - sequence)):
            try:
                record, *_ = decode(memoryview(data), cursor.position)
            except Damaged as error:
                raise self._error(cursor.position.sequence + 1, str(error)) from None
            records.append((cursor, record))
            cursor = Cursor(Position(record.sequence, record.hash))
        return records, cursor

    def append(self, fencing_number: int, after: Position, last: Position, group: list[bytes]) -> str:
        """Runs the script APPEND, waits until its effect is in the append-only file, and returns the result."""
        arguments = (fencing_number, self.lease_ms, after.sequence, after.hash, last.sequence, last.hash, *group)
        with _redis_errors("the changes may or may not be in it"), self.client.pipeline(transaction=False) as pipe:
            # On one connection and in one round trip: WAITAOF waits for the commands of its own connection.
            pipe.eval(APPEND, len(self._keys_of_scripts), *self._keys_of_scripts, *arguments)
            if self._has_waitaof:
                pipe.execute_command("WAITAOF", 1, 0, round(1000 * WAITAOF_SECONDS))
            pipe.config_get("append*")
            result, *acknowledged, settings = pipe.execute(raise_on_error=False)
        if isinstance(result, RedisError):
            raise StoreUnavailable(f"Redis refused to append to the graph log ({result}); nothing was appended")
        self.durability = self._durability_of(acknowledged, settings)
        return str(result.decode())

    def _durability_of(self, acknowledged: list[Any], settings: Any) -> str:
        """Returns what an append survives; never more than Redis has confirmed.

        "aof": WAITAOF confirmed the flush. "aof-always", "aof-everysec", "aof-no": what the configuration promises.
        "memory": there is no append-only file, or the configuration cannot be read.
        """
        answer = acknowledged[0] if acknowledged else None
        if isinstance(answer, list) and answer[0] >= 1:
            return "aof"
        if isinstance(answer, ResponseError) and "unknown command" in str(answer).lower():
            self._has_waitaof = False  # before Redis 7.2
        if isinstance(settings, RedisError):
            return "memory"
        values = {_text(name): _text(value) for name, value in settings.items()}
        return f"aof-{values['appendfsync']}" if values.get("appendonly") == "yes" else "memory"

    def _state(self) -> tuple[Position, Position]:
        """Returns the position of the last record and of the last pruned record."""
        with _redis_errors():
            fields = self.client.hmget(self._keys_of_scripts[0], "sequence", "hash", "start", "start_hash")
        if None in fields[:2]:
            return Position(), Position()
        last = Position(int(fields[0]), fields[1].decode())
        return last, Position() if None in fields[2:] else Position(int(fields[2]), fields[3].decode())

    def _range(self, first: int, count: int) -> list[bytes]:
        """Returns the bytes of `count` records."""
        with _redis_errors():
            entries = self.client.xrange(self._stream, f"{first}-0", f"{first + count - 1}-0", count=count)
        names = [name for name, _ in entries]
        expected = [b"%d-0" % sequence for sequence in range(first, first + count)]
        if names != expected:
            last, start = self._state()
            self._check_range(first - 1, last.sequence, start.sequence)  # another process may have pruned them
            missing = next(sequence for sequence, name in enumerate(expected, first) if name not in names)
            raise self._error(missing, "the record is missing")
        return [fields.get(b"r", b"") for _, fields in entries]

    def _check_range(self, sequence: int, last: int, start: int) -> None:
        if sequence < start:
            raise RecordsPruned(f"the graph log {self._name} begins with sequence {start + 1}; {sequence + 1} was pruned")
        if sequence > last:
            raise self._error(last, f"the log ends here, expected at least sequence {sequence}: Redis has lost records")

    def _error(self, sequence: int, reason: str) -> LogError:
        return LogError(f"{self._stream} at sequence {sequence}", reason)

    def _run(self, script: str, *arguments: Any) -> Any:
        with _redis_errors():
            return self.client.eval(script, len(self._keys_of_scripts), *self._keys_of_scripts, *arguments)


class RedisWriter(Writer):
    def __init__(self, log: RedisLog, fencing_number: int) -> None:
        super().__init__(log)
        self._log, self.fencing_number = log, fencing_number

    def _prepare(self) -> Cursor:
        return self._log.tail or self._log.follow()  # without a round trip: the script compares it with the log

    def _commit(self, cursor: Cursor, group: list[tuple[Record, bytes]]) -> None:
        record = group[-1][0]
        last = Position(record.sequence, record.hash)
        result = self._log.append(self.fencing_number, cursor.position, last, [data for _, data in group])
        if result == "fenced":
            raise Fenced("another process has taken over the graph log; nothing was appended: acquire the lease again")
        if result == "behind":
            raise Behind(f"the log does not end at sequence {cursor.position.sequence}: read the new records")


@contextmanager
def _redis_errors(result: str = "try again later") -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        cause = str(error).partition(", with args beginning with")[0] or type(error).__name__
        raise StoreUnavailable(f"Redis, which keeps the graph log, failed ({cause}); {result}") from error


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
