"""The folder of a job in the store: what its training writes, and the files that control the training.

Events and log are redacted when they are read: of an absolute path, only the last component remains.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path

from model_store.versions.locks import exclusive_unless_held
from service.settings import Settings

FOLDER = ".jobs"  # in the store; not a valid name of a model
FENCING_FILE = "permit"  # a training of `sgf-worker` publishes and activates only while this file exists
TAIL_BYTES, TAIL_LINES = 8192, 40
_QUOTED = r"""(?<=['"])/[^'"\n]+(?=['"])"""
_BARE = r"""(?<![\w./])(?:/[^\s/:'"]+)+"""
_URL = r"""\bfile://(?:/[^\s/:'"]+)+"""
_PATH = re.compile(f"{_URL}|{_QUOTED}|{_BARE}")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')  # of JSON


class JobFolder:
    def __init__(self, settings: Settings, job_id: str) -> None:
        self.job_id, self.path = job_id, settings.store / FOLDER / job_id
        self.events = self.path / "events.jsonl"
        self.log = self.path / "log.txt"
        self.lock = self.path / "lock"  # held by the training until it is dead
        self.fencing_file = self.path / FENCING_FILE
        self._redaction = Redaction(settings.store, settings.data_root, Path(sys.prefix))

    def is_locked(self) -> bool:
        """True while the training of the job is alive."""
        with exclusive_unless_held(self.lock) as acquired:
            return not acquired and self.lock.exists()

    def read_events(self, position: int) -> tuple[list[str], int]:
        """The complete lines after a position in bytes, and the position after them. Without a file there are no lines."""
        lines: list[str] = []
        with suppress(FileNotFoundError), self.events.open("rb") as file:
            file.seek(position)
            complete, newline, _incomplete = file.read().rpartition(b"\n")
            position += len(complete + newline)
            # A line that a full disk truncated is followed by an empty line.
            lines = [self._redaction.line(line.decode(errors="replace")) for line in complete.split(b"\n") if line]
        return lines, position

    def read_log_tail(self) -> str:
        with suppress(FileNotFoundError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
            return self._redaction.text("\n".join(lines[-TAIL_LINES:]))
        return ""


class Redaction:
    def __init__(self, *roots: Path) -> None:
        # Known folders are replaced first, because a pattern cannot find the end of a path that contains spaces.
        known = {str(path) for root in roots for path in (root, root.resolve()) if path.is_absolute() and path != Path("/")}
        longest_first = "|".join(re.escape(root) for root in sorted(known, key=len, reverse=True))
        self._roots = re.compile(rf"(?:\bfile://)?(?<![\w.])(?:{longest_first})(?![\w-]|\.\w)")

    def text(self, text: str) -> str:
        return _PATH.sub(lambda path: f".../{path.group().rpartition('/')[2]}", self._roots.sub("...", text))

    def line(self, line: str) -> str:
        """Redacts each decoded string of a JSON line. In the raw line, a path after an escaped newline follows the letter n,
        so the pattern would not match it.
        """
        try:
            json.loads(line)
        except (ValueError, RecursionError):  # a full disk truncated the line
            return self.text(line)
        return _STRING.sub(lambda string: json.dumps(self.text(json.loads(string.group()))), line)
