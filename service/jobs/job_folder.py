"""The folder of a job in the store: what its training writes, and the files that control the training."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from model_store.versions.locks import exclusive_unless_held
from service.jobs.redaction import Redaction
from service.settings import Settings

FOLDER = ".jobs"  # in the store; not a valid name of a model
EVENTS, LOG = "events.jsonl", "log.txt"
LOCK = "lock"  # held by the training until it is dead
FENCING_FILE = "permit"  # of a worker's training, which publishes and goes live only while this file exists
TAIL_BYTES, TAIL_LINES = 8192, 40


class Position(NamedTuple):
    """What a reader of events has read: a number of events, and a number of bytes of the file (0 in Redis)."""

    number: int = 0
    byte: int = 0


class EventLine(NamedTuple):
    end: Position
    text: str


def job_folder(settings: Settings, job_id: str) -> Path:
    return settings.store / FOLDER / job_id


def read_events(folder: Path, redaction: Redaction, after: Position) -> list[EventLine]:
    """The complete lines after a position; none if the file does not exist."""
    number, byte = after
    lines = []
    with suppress(FileNotFoundError), (folder / EVENTS).open("rb") as file:
        file.seek(byte)
        *complete, _incomplete = file.read().split(b"\n")
        for line in complete:
            byte += len(line) + 1
            if line:  # an empty line follows a line that a full disk truncated
                number += 1
                lines.append(EventLine(Position(number, byte), redaction.line(line.decode(errors="replace"))))
    return lines


def read_log_tail(folder: Path, redaction: Redaction) -> str:
    with suppress(FileNotFoundError), (folder / LOG).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        return redaction.text("\n".join(file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]))
    return ""


def is_held(lock: Path) -> bool:
    with exclusive_unless_held(lock) as acquired:
        return not acquired and lock.exists()
