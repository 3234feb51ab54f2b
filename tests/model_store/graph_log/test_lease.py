"""Writers of a file log that are paused at every step of an append, while another process takes over."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_store.errors import Fenced, StoreUnavailable
from model_store.graph_log import FileLog, Record
from model_store.graph_log.file_writer import FileWriter
from model_store.graph_log.record import encode_group
from model_store.graph_log.segment import Segment
from tests.model_store.graph_log.logs import append, read_all
from tests.service.serving import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "g"


def impatient(folder: Path) -> FileLog:
    """A process for which every other holder of the lease is silent."""
    return FileLog(folder, lease_seconds=0)


def interrupt(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, action: Callable[[], object], after: bool) -> None:
    """Runs `action` once, before or after the first call of a method: as if the caller were paused there."""
    original, pending = getattr(target, name), [action]

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if pending and not after:
            pending.pop()()
        result = original(*arguments, **options)
        if pending and after:
            pending.pop()()
        return result

    monkeypatch.setattr(target, name, interrupted)


def _die(*_: object, **__: object) -> None:
    raise OSError("killed")


def append_or_fence(writer: FileWriter, expected: int) -> list[Record] | None:
    try:
        return writer.append([("k", b"old"), ("", b"old too")], expected)
    except Fenced:
        return None


@pytest.mark.parametrize(
    ("step", "after", "counts"),
    [
        ("write", False, False),
        ("write", True, True),
        ("flush", False, True),
        ("flush", True, True),
        ("commit", False, True),
    ],
)
@pytest.mark.parametrize("new_records", [0, 2])
def test_a_writer_paused_in_an_append(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool, counts: bool, new_records: int
) -> None:
    """Its group counts if it was complete when the other process sealed the segment; the log agrees with its answer."""
    old, reader = FileLog(folder), FileLog(folder)
    append(old, b"first")
    seen: list[Record] = []

    def take_over() -> None:
        with impatient(folder).writer(5) as new:
            for _ in range(new_records):
                new.append([("", b"new")], new.log.position().sequence)
        seen.extend(read_all(reader))

    with old.writer(1) as writer:
        interrupt(monkeypatch, writer._segment, step, take_over, after)
        records = append_or_fence(writer, expected=1)
        with pytest.raises(Fenced):
            writer.append([("", b"late")], old.position().sequence)
    payloads = [b"first", *[b"old", b"old too"] * counts, *[b"new"] * new_records]
    assert [record.payload for record in read_all(FileLog(folder))] == payloads
    assert read_all(reader)[: len(seen)] == seen
    assert (records is not None) == counts
    assert (FileLog(folder).find("k") is not None) == counts
    assert append(old, b"old", keys=["k"])[0].sequence == (2 if counts else len(payloads) + 1)


def test_half_a_group_is_outside_the_seal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = FileLog(folder)
    append(old, b"first")
    with old.writer(1) as writer:
        write = writer._segment.write

        def write_slowly(data: bytes, offset: int) -> None:
            write(data[:-3], offset)
            append(impatient(folder), b"new")
            write(data[-3:], offset + len(data) - 3)

        monkeypatch.setattr(writer._segment, "write", write_slowly)
        assert append_or_fence(writer, expected=1) is None
    assert [record.payload for record in read_all(FileLog(folder))] == [b"first", b"new"]


def test_a_process_that_dies_during_its_take_over_fences_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has announced the seal, but not written it: the paused writer writes it and keeps the lease."""
    old = FileLog(folder)
    append(old, b"first")

    def die_taking_over() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "create", _die)
            with pytest.raises(StoreUnavailable, match="OSError"), impatient(folder).writer(5):
                pass

    with old.writer(1) as writer:
        interrupt(monkeypatch, writer._segment, "flush", die_taking_over, after=True)
        assert append_or_fence(writer, expected=1) is not None
        assert writer.fencing_number == 2
        assert writer.append([("", b"more")], expected=3)[0].fencing_number == 2
    assert [record.payload for record in read_all(FileLog(folder))] == [b"first", b"old", b"old too", b"more"]


def test_of_two_processes_that_take_over_one_gets_the_lease(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused, first, second = FileLog(folder), impatient(folder), FileLog(folder, lease_seconds=0)
    append(paused, b"first")
    with paused.writer(1) as old:
        with monkeypatch.context() as patch:
            interrupt(patch, Segment, "create", lambda: append(first, b"by first"), after=False)
            with second.writer(5) as writer:  # it has read the seal, but `first` was quicker
                assert writer.fencing_number == 2
                writer.append([("", b"by second")], expected=2)
        assert append_or_fence(old, expected=1) is None
    assert [record.payload for record in read_all(paused)] == [b"first", b"by first", b"by second"]


def test_a_writer_that_wakes_up_while_another_process_takes_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has read the end of the segment, but not sealed it yet."""
    log = FileLog(folder)
    append(log, b"first")
    with log.writer(1) as old:
        results = []
        interrupt(monkeypatch, Segment, "valid_end", lambda: results.append(append_or_fence(old, expected=1)), after=True)
        other = impatient(folder)
        with other.writer(5) as new:
            new.append([("", b"new")], other.position().sequence)
    assert results[0] is not None
    assert [record.payload for record in read_all(FileLog(folder))] == [b"first", b"old", b"old too", b"new"]


def test_a_reader_that_repairs_while_another_process_takes_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paused writer writes a group and is killed, after the other process has read the end of the segment."""
    log = FileLog(folder)
    append(log, b"first")
    delivered: list[Record] = []

    def write_and_die() -> None:
        ((_, data),) = encode_group([("", b"unacknowledged")], log.position(), fencing_number=1)
        holder.write(data, holder.size)
        holder.close()
        delivered.extend(read_all(FileLog(folder)))

    holder = log._lease.acquire(1, log.follow)
    interrupt(monkeypatch, Segment, "valid_end", write_and_die, after=True)
    append(impatient(folder), b"new")
    records = read_all(FileLog(folder))
    assert records[: len(delivered)] == delivered
    assert [record.payload for record in records] == [b"first", b"unacknowledged", b"new"]


def test_a_failed_flush_leaves_the_decision_to_the_next_writer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FileLog(folder)
    with log.writer(1) as writer:
        monkeypatch.setattr(writer._segment, "flush", _die)
        with pytest.raises(StoreUnavailable, match="could not be flushed: the changes may or may not be in it"):
            writer.append([("k", b"unacknowledged")], expected=0)
        with pytest.raises(StoreUnavailable, match="an earlier append of this writer failed"):
            writer.append([("", b"more")], expected=0)
        assert read_all(FileLog(folder)) == []
    assert append(log, b"unacknowledged", keys=["k"])[0].sequence == 1
    assert len(read_all(FileLog(folder))) == 1


def test_pruning_keeps_the_segment_of_a_paused_writer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = FileLog(folder), FileLog(folder, lease_seconds=0, segment_bytes=200)
    append(old, b"first")

    def take_over_and_prune() -> None:
        for _ in range(5):
            append(new, b"x" * 200)
        assert new.prune(through=100) == 1

    with old.writer(1) as writer:
        interrupt(monkeypatch, writer._segment, "flush", take_over_and_prune, after=False)
        assert append_or_fence(writer, expected=1) is not None
    assert new.prune(through=100) > 1


def test_a_process_paused_in_its_take_over_does_not_create_a_pruned_segment_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, other = impatient(folder), FileLog(folder, lease_seconds=0, segment_bytes=200)
    append(other, b"first")

    def continue_and_prune() -> None:
        for _ in range(5):
            append(other, b"x" * 200)
        assert other.prune(through=100) > 1

    holder = Segment.open(folder, 1)
    assert holder is not None
    assert holder.try_lock()
    interrupt(monkeypatch, paused, "follow", lambda: (holder.close(), continue_and_prune()), after=True)
    with paused.writer(5) as writer:
        assert writer.append([("", b"last")], expected=6)[0].sequence == 7
    assert len(read_all(FileLog(folder), after=6)) == 1


CHILD = """
import sys
from pathlib import Path
from model_store.errors import Fenced
from model_store.graph_log import FileLog

log = FileLog(Path(sys.argv[1]), lease_seconds=0.3)
with log.writer(10) as writer:
    writer.append([("", b"by the child")], expected=0)
    print("leased", flush=True)
    sys.stdin.readline()
    try:
        writer.append([("", b"late")], expected=1)
    except Fenced as error:
        print(f"fenced: {error}", flush=True)
"""


def test_a_stopped_process_is_fenced_when_it_wakes_up(folder: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "leased\n"
            child.send_signal(signal.SIGSTOP)
            append(FileLog(folder, lease_seconds=0.3), b"by the parent")
            child.send_signal(signal.SIGCONT)
            child.stdin.write("go\n")
            child.stdin.flush()
            assert child.stdout.readline().startswith("fenced: another process has taken over")
            until(lambda: child.poll() is not None)
        finally:
            child.kill()
    assert [record.payload for record in read_all(FileLog(folder))] == [b"by the child", b"by the parent"]
