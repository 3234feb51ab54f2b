"""Files that a crash or a broken disk left behind: torn tails are cut off, everything else is an error with its place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from model_store.errors import LogError, StoreError
from model_store.graph_log import FileLog
from model_store.graph_log.segment import CLOSING_AT, COMMITTED_AT, RECORDS_AT, WORD, Segment, segment_path
from tests.model_store.graph_log.logs import append, read_all

HEADER_WORDS = range(COMMITTED_AT, RECORDS_AT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "g"


def stale_committed_length(folder: Path, end: int, content: bytes | None = None) -> None:
    """Leaves the segment as a power cut does: the last records are on the disk, the committed length is an older one."""
    path = segment_path(folder, 1)
    content = path.read_bytes() if content is None else content
    path.write_bytes(content[:COMMITTED_AT] + WORD.pack(end) + content[COMMITTED_AT + 8 :])


def test_a_torn_tail_is_cut_off_at_every_byte(folder: Path) -> None:
    """The last group has two records: without the end of the second, the first does not count either."""
    log = FileLog(folder)
    append(log, b"kept")
    path = segment_path(folder, 1)
    whole_before = path.stat().st_size
    append(log, b"torn", b"torn too", keys=["k", ""])
    content = path.read_bytes()
    for end in range(whole_before, len(content)):
        stale_committed_length(folder, whole_before, content[:end])
        reader = FileLog(folder)
        assert [record.payload for record in read_all(reader)] == [b"kept"]
        assert path.stat().st_size == whole_before, "no writer lives: the reader has cut it off"
        stale_committed_length(folder, whole_before, content[:end])
        append(FileLog(folder), b"next")
        assert [record.payload for record in read_all(reader)] == [b"kept", b"next"]
        reader.close()


def test_complete_groups_after_the_committed_length_are_kept(folder: Path) -> None:
    log = FileLog(folder)
    append(log, b"first")
    end = segment_path(folder, 1).stat().st_size
    append(log, b"second", b"third")
    stale_committed_length(folder, end)
    assert len(read_all(FileLog(folder))) == 3
    stale_committed_length(folder, end)
    assert append(FileLog(folder), b"fourth")[0].sequence == 4


def test_an_uncommitted_group_is_invisible_while_its_writer_lives(folder: Path) -> None:
    log = FileLog(folder)
    append(log, b"first")
    end = segment_path(folder, 1).stat().st_size
    append(log, b"second")
    stale_committed_length(folder, end)
    segment = Segment.open(folder, 1)
    assert segment is not None
    assert segment.try_lock()
    reader = FileLog(folder)
    assert len(read_all(reader)) == 1
    assert not reader.wait(1, seconds=0.02)
    segment.close()
    assert reader.wait(1, seconds=0)


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_a_flipped_byte_is_an_error_that_names_the_record(folder: Path, mask: int) -> None:
    log = FileLog(folder)
    starts = [RECORDS_AT]
    for number in range(3):
        append(log, b"payload %d" % number, keys=["key"[:number]])
        starts.append(segment_path(folder, 1).stat().st_size)
    path = segment_path(folder, 1)
    content = path.read_bytes()
    for offset in range(len(content)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ mask]) + content[offset + 1 :])
        if offset in HEADER_WORDS:
            continue
        begin = max((start for start in starts if start <= offset), default=0)
        with pytest.raises(LogError, match=rf"^g/000000000001.log at byte {begin}: "):
            (append if offset % 8 == 0 else read_all)(FileLog(folder))
    path.write_bytes(content)
    assert len(read_all(FileLog(folder))) == 3


def test_damaged_words_of_the_header_lose_no_record(folder: Path) -> None:
    log = FileLog(folder)
    append(log, b"first")
    append(log, b"second")
    path = segment_path(folder, 1)
    content = path.read_bytes()
    for offset in HEADER_WORDS:
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0xFF]) + content[offset + 1 :])
        try:
            records = read_all(FileLog(folder))
        except StoreError as error:
            assert "g/000000000001.log at byte" in str(error)  # noqa: PT017
        else:
            assert [record.payload for record in records] == [b"first", b"second"]
        for successor in folder.glob("*2.log"):
            successor.unlink()


@pytest.mark.parametrize("missing", [1, 50])
def test_a_file_that_lost_committed_bytes_is_an_error(folder: Path, missing: int) -> None:
    append(FileLog(folder), b"x" * 100)
    path = segment_path(folder, 1)
    path.write_bytes(path.read_bytes()[:-missing])
    for use in (read_all, append):
        with pytest.raises(LogError, match="records are lost"):
            use(FileLog(folder))


def test_a_lost_or_replaced_segment_is_an_error(folder: Path, tmp_path: Path) -> None:
    log, other = FileLog(folder, segment_bytes=200), FileLog(tmp_path / "other", segment_bytes=200)
    for _ in range(6):
        append(log, b"x" * 100)
        append(other, b"y" * 100)
    second, content = segment_path(folder, 2), segment_path(folder, 2).read_bytes()
    second.unlink()
    for use in (read_all, append):
        with pytest.raises(LogError, match=r"g/000000000002.log: the file is missing"):
            use(FileLog(folder, segment_bytes=200))
    second.write_bytes(segment_path(tmp_path / "other", 2).read_bytes())
    with pytest.raises(LogError, match=r"g/000000000002.log at byte 0: does not continue 000000000001.log"):
        read_all(FileLog(folder, segment_bytes=200))
    second.write_bytes(segment_path(folder, 1).read_bytes())
    with pytest.raises(LogError, match=r"g/000000000002.log at byte 0: the header is that of segment 1"):
        read_all(FileLog(folder, segment_bytes=200))
    second.write_bytes(content)
    assert len(read_all(FileLog(folder, segment_bytes=200))) == 6


def test_a_log_that_was_removed_or_replaced_is_an_error(folder: Path) -> None:
    reader = FileLog(folder)
    append(FileLog(folder), b"first")
    assert len(read_all(reader)) == 1
    shutil.rmtree(folder)
    with pytest.raises(LogError, match="g: the log ends at 0, expected at least sequence 1: records are lost"):
        reader.read(1)
    append(FileLog(folder), b"other")
    append(FileLog(folder), b"records")
    with pytest.raises(
        LogError, match=r"g/000000000001.log at byte \d+: the hash of the record that follows sequence 1 is wrong"
    ):
        reader.read(1)


def test_an_announced_seal_that_nobody_wrote_is_written_by_the_next_process(folder: Path) -> None:
    """A process that was killed between the announcement and the new segment."""
    log = FileLog(folder)
    append(log, b"first")
    with segment_path(folder, 1).open("r+b") as file:
        file.seek(CLOSING_AT)
        file.write(WORD.pack(1))
    assert len(read_all(FileLog(folder))) == 1
    (record,) = append(FileLog(folder), b"second")
    assert (record.sequence, record.fencing_number) == (2, 2)
    assert len(read_all(log)) == 2


def test_a_reader_without_write_permission_reads_the_committed_records(folder: Path) -> None:
    log = FileLog(folder)
    append(log, b"first")
    path = segment_path(folder, 1)
    with path.open("ab") as file:
        file.write(b"torn")
    reader = FileLog(folder)
    reader._segment = Segment(path, os.open(path, os.O_RDONLY))  # not chmod: root may write anyway
    assert len(read_all(reader)) == 1
    assert path.read_bytes().endswith(b"torn")
    reader.close()
