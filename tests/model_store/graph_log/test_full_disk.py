"""Disks without space: an append fails as a whole, and the next one works once there is room."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_store.errors import StoreUnavailable
from model_store.graph_log import FileLog
from model_store.graph_log.segment import segment_path
from tests.model_store.graph_log.logs import append, read_all


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses to write a file beyond `size` (EFBIG), after it has written a part, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 100, 250, 383])
def test_a_group_without_room_is_not_appended(tmp_path: Path, room: int) -> None:
    log, path = FileLog(tmp_path), segment_path(tmp_path, 1)
    append(log, b"first")
    before = path.stat().st_size
    with log.writer(1) as writer:
        with largest_file(before + room):
            for _ in range(2):
                with pytest.raises(
                    StoreUnavailable, match="cannot be written, and the changes are not in it: File too large"
                ):
                    writer.append([("a", b"x" * 100), ("b", b"y" * 150)], expected=1)
            assert path.stat().st_size == before
            assert len(read_all(FileLog(tmp_path))) == 1
        records = writer.append([("a", b"x" * 100), ("b", b"y" * 150)], expected=1)
    assert [record.sequence for record in records] == [2, 3]
    assert len(read_all(FileLog(tmp_path))) == 3


def test_a_new_segment_without_room_is_not_created(tmp_path: Path) -> None:
    log = FileLog(tmp_path, segment_bytes=300)
    append(log, b"x" * 300)
    with log.writer(1) as writer, largest_file(100), pytest.raises(StoreUnavailable, match="File too large"):
        writer.append([("", b"y")], expected=1)
    assert [path.name for path in tmp_path.glob("*.log")] == ["000000000001.log"]
    assert append(log, b"y")[0].fencing_number == 2


FILL = """
import sys
from pathlib import Path
from model_store.errors import StoreUnavailable
from model_store.graph_log import FileLog

folder = Path(sys.argv[1])
log = FileLog(folder / "g", segment_bytes=10_000)
filler = folder / "filler"
filler.write_bytes(bytes(100_000))
appended, refused = 0, 0
with log.writer(1) as writer:
    while refused < 3:
        try:
            appended += len(writer.append([("", b"x" * 1000)] * 3, expected=appended))
        except StoreUnavailable as error:
            assert "No space left on device" in str(error), error
            assert FileLog(folder / "g").position().sequence == appended
            refused += 1
filler.unlink()
with log.writer(1) as writer:
    appended += len(writer.append([("", b"y" * 1000)] * 3, expected=appended))
assert FileLog(folder / "g").position().sequence == appended > 20
print("survived")
"""


def test_a_full_file_system(tmp_path: Path) -> None:
    """A tmpfs of 200 kB, in a mount namespace of its own, for which no root is needed where the kernel allows it."""
    unshare = shutil.which("unshare")
    script = 'mount -t tmpfs -o size=200k none "$1" && exec "$2" -c "$3" "$1"'
    command = [unshare or "", "-rm", "sh", "-ec", script, "sh", str(tmp_path), sys.executable, FILL]
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("NOT RUN: this kernel does not permit a mount namespace without root")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "survived\n", done.stderr
