"""What both adapters promise: numbers, hashes, keys, one writer, readers that follow, pruning."""

from __future__ import annotations

import hashlib
import struct
import threading
import time

import pytest

from model_store.errors import Behind, DataError, Fenced, KeyReused, LogError, RecordsPruned, StoreBusy
from model_store.graph_log import GraphLog, Position
from tests.model_store.graph_log.conftest import OpenLog
from tests.model_store.graph_log.logs import append, read_all


def test_an_empty_log_has_no_records(log: GraphLog) -> None:
    assert log.position() == (0, "0" * 64)
    assert log.read(0) == []
    assert log.find("a") is None
    assert log.find("") is None
    assert log.size_bytes == 0
    assert not log.wait(0, seconds=0.01)


def test_another_process_reads_what_was_appended(log: GraphLog, open_log: OpenLog) -> None:
    append(log, b"first", b"", keys=["a", ""])
    written = append(log, b"\0\xff", keys=["ключ"])
    records = read_all(open_log())
    assert [(record.sequence, record.key, record.payload) for record in records] == [
        (1, "a", b"first"),
        (2, "", b""),
        (3, "ключ", b"\0\xff"),
    ]
    assert records[2:] == written
    assert abs(records[2].time - time.time()) < 600
    assert open_log().position() == log.position() == (3, records[2].hash)
    assert log.size_bytes > 0


def test_the_hash_of_a_record_is_that_of_the_specification(log: GraphLog) -> None:
    append(log, b"first", b"second", keys=["a", ""])
    previous = bytes(32)
    for record, following in zip(read_all(log), (1, 0), strict=True):
        key, microseconds = record.key.encode(), round(record.time * 1e6)
        length = 34 + 32 + len(key) + len(record.payload)
        head = struct.pack("<IIQQqH", length, following, record.sequence, record.fencing_number, microseconds, len(key))
        previous = hashlib.sha256(previous + head + key + hashlib.sha256(record.payload).digest()).digest()
        assert record.hash == previous.hex()
        assert record.digest == hashlib.sha256(record.payload).hexdigest()


def test_reading_from_any_sequence_gives_the_same_records(log: GraphLog, open_log: OpenLog) -> None:
    for number in range(60):  # several segments
        append(log, b"x" * number)
    records = read_all(log)
    assert [record.sequence for record in records] == list(range(1, 61))
    assert log.position() == (60, records[-1].hash)
    for after in (0, 59, 31, 30, 60, 1):
        assert read_all(open_log(), after) == read_all(log, after) == records[after:]
    assert len(log.read(3, limit=2)) == 2


def test_reading_beyond_the_end_is_an_error(log: GraphLog) -> None:
    append(log, b"a")
    with pytest.raises(LogError, match=r"sequence 5.*lost"):
        log.read(5)


def test_a_key_gives_the_earlier_record(log: GraphLog, open_log: OpenLog) -> None:
    (first,) = append(log, b"one", keys=["a"])
    other = open_log()
    again, new, twice = append(other, b"one", b"two", b"two", keys=["a", "b", "b"])
    assert again == first
    assert new == twice
    assert new.sequence == 2
    assert other.position().sequence == 2
    assert log.find("a") == other.find("a") == first
    assert log.find("b") == open_log().find("b") == new
    assert log.find("c") is None


def test_the_newest_keys_are_remembered(log: GraphLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_store.graph_log.log.MAX_KEYS", 2)
    append(log, b"one", b"two", b"three", keys=["a", "b", "c"])
    assert log.find("a") is None
    assert log.find("b") is not None
    assert log.find("c") is not None


@pytest.mark.parametrize("payloads", [(b"two", b"other"), (b"new", b"newer")])
def test_a_key_with_another_payload_is_refused(log: GraphLog, payloads: tuple[bytes, bytes]) -> None:
    append(log, b"one", keys=["a"])
    key = "a" if payloads[0] == b"two" else "b"
    with pytest.raises(KeyReused, match=f"'{key}' belongs to another change") as caught:
        append(log, *payloads, keys=[key, key])
    assert caught.value.key == key
    assert log.position().sequence == 1


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("k" * 256, "has 256 bytes; the limit is 255"),
        ("line\n", r"'line\\n' has characters that are not printable"),
        ("\ud800", "has characters that are not printable"),
    ],
)
def test_keys_that_are_no_short_text_are_refused(log: GraphLog, key: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        append(log, b"", keys=[key])
    append(log, b"", keys=["k" * 255])


def test_a_writer_must_have_seen_the_whole_log(log: GraphLog, open_log: OpenLog) -> None:
    append(open_log(), b"a", b"b")
    with log.writer(1) as writer:
        for wrong in (0, 1, 3):
            with pytest.raises(Behind, match=f"ends at sequence 2, expected {wrong}"):
                writer.append([("", b"c")], expected=wrong)
        assert writer.append([("", b"c")], expected=2)[0].sequence == 3
        assert writer.append([("", b"d")], expected=3)[0].sequence == 4
        assert writer.append([], expected=4) == []


def test_one_writer_at_a_time(log: GraphLog, open_log: OpenLog) -> None:
    with log.writer(1) as writer:
        with pytest.raises(StoreBusy, match=r"lease of the graph log .* for 0.05 s"), open_log().writer(0.05):
            pass
        writer.append([("", b"a")], expected=0)
    append(open_log(), b"b")
    assert log.position().sequence == 2


def test_a_silent_writer_is_fenced(log: GraphLog, open_log: OpenLog) -> None:
    other = open_log()
    with log.writer(1) as old:
        old.append([("", b"a")], expected=0)
        with other.writer(30) as new:
            assert new.fencing_number > old.fencing_number
            with pytest.raises(Fenced, match="taken over"):
                old.append([("", b"lost")], expected=1)
            new.append([("", b"b")], expected=1)
            with pytest.raises(Fenced):
                old.append([("", b"lost")], expected=1)
    assert [record.payload for record in read_all(open_log())] == [b"a", b"b"]
    records = append(log, b"c")  # the fenced process may acquire the lease again
    assert records[0].sequence == 3


def test_a_writer_that_appends_keeps_the_lease(log: GraphLog, open_log: OpenLog) -> None:
    with log.writer(1) as writer, pytest.raises(StoreBusy):  # noqa: PT012
        thread = threading.Thread(target=lambda: [_pause_and_append(writer, number) for number in range(12)])
        thread.start()
        try:
            with open_log().writer(1.0):
                pass
        finally:
            thread.join()
    assert log.position().sequence == 12


def _pause_and_append(writer: object, number: int) -> None:
    writer.append([("", b"")], expected=number)  # type: ignore[attr-defined]
    time.sleep(0.1)


def test_waiting_readers_get_every_record_in_order(log: GraphLog, open_log: OpenLog) -> None:
    seen: list[list[bytes]] = [[], []]

    def follow(records: list[bytes]) -> None:
        reader = open_log()
        while len(records) < 100 and reader.wait(len(records), seconds=30):
            records += [record.payload for record in reader.read(len(records))]

    threads = [threading.Thread(target=follow, args=[records]) for records in seen]
    for thread in threads:
        thread.start()
    expected = [b"%d" % number for number in range(100)]
    for first in range(0, 100, 4):
        append(log, *expected[first : first + 4])
    for thread in threads:
        thread.join()
    assert seen == [expected, expected]


def test_pruned_records_are_gone_and_the_chain_goes_on(log: GraphLog, open_log: OpenLog) -> None:
    reader, follower = open_log(), open_log()
    for number in range(60):
        append(log, b"x" * 50, keys=[f"k{number}"])
    records = read_all(log)
    assert reader.read(10, limit=1) == records[10:11]
    assert follower.position().sequence == 60
    size = log.size_bytes

    first = log.prune(through=40)
    assert 1 < first <= 41
    assert log.size_bytes < size
    assert read_all(open_log(), after=first - 1) == records[first - 1 :]
    assert open_log().position() == log.position() == Position(60, records[-1].hash)
    for late in (log, reader, open_log()):
        with pytest.raises(RecordsPruned, match=f"begins with sequence {first}"):
            late.read(0)
        assert late.find("k59") == records[59]
        assert late.find(f"k{first - 1}") == records[first - 1]
    with pytest.raises(RecordsPruned):
        reader.read(first - 2)
    assert open_log().find("k0") is None
    append(follower, b"after", keys=["k61"])
    assert log.read(60)[0].payload == b"after"
    assert log.prune(through=40) == first


def test_pruning_everything_keeps_the_position(log: GraphLog, open_log: OpenLog) -> None:
    for number in range(60):
        append(log, b"%d" % number * 30)
    position = log.position()
    first = log.prune(through=1_000)
    assert open_log().position() == position
    assert read_all(open_log(), after=first - 1) == read_all(log, after=first - 1)
    assert append(open_log(), b"next")[0].sequence == 61


def test_pruning_while_readers_follow(log: GraphLog, open_log: OpenLog) -> None:
    seen: list[int] = []

    def follow() -> None:
        reader = open_log()
        while len(seen) < 150 and reader.wait(len(seen), seconds=30):
            seen.extend(record.sequence for record in reader.read(len(seen), limit=3))

    thread = threading.Thread(target=follow)
    thread.start()
    pruner = open_log()
    for number in range(150):
        append(log, b"x" * 100)
        if number % 5 == 0:
            pruner.prune(through=len(seen))
    thread.join()
    assert seen == list(range(1, 151))
