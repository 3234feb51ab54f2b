"""Sends a file of operations to a service in batches. Each is applied exactly once, even if a run is killed and repeated.

Before a batch is sent, the file NAME.progress records its lines. The next run sends the same lines with the same
idempotency key, by which the service recognises a batch that it has applied already. The digest of the file up to the end of
the batch is part of the key and of the progress, so a change of lines that were sent is noticed. Lines may be added at the
end of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from model_store import DataError
from model_store.versions.durable import sync
from sgformer_client import Client, ServiceError

BAR_WIDTH = 24
UNDECIDED_STATUSES = (408, 429)
"""The statuses below 500 after which the same request may succeed later."""


class Applied(NamedTuple):
    operations: int
    skipped: int
    """Operations that `upsert` turned into an update, or that had no effect."""
    earlier_lines: int
    """Lines that earlier runs have applied."""
    sequence: int | None
    """The number of the last change; None if nothing was sent."""


class Batch(NamedTuple):
    first: int
    """The number of the first line."""
    last: int
    before: str
    """The digest of the file up to the line before the first."""
    digest: str
    """The digest up to the end of the last line."""
    operations: list[Any]
    lines: list[int]
    """The line of each operation."""
    end: int
    """Where the last line ends, in bytes from the beginning of the file."""


@dataclass(frozen=True)
class Progress:
    graph: str
    """The id of the graph that the operations change."""
    first: int = 1
    """All lines before this one are applied."""
    last: int = 0
    """The lines from `first` to this one may have been applied."""
    digest: str = hashlib.sha256().hexdigest()
    """The digest of the file up to the line `last`."""

    @classmethod
    def read(cls, path: Path, graph: str) -> Progress:
        """Raises DataError if the file is damaged, or about another graph."""
        try:
            progress = cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return cls(graph)
        except (ValueError, TypeError, RecursionError):
            raise DataError(
                f"{path.name} is not what sgf-graph wrote: restore it, or remove it to apply all lines again"
            ) from None
        if progress.graph != graph:
            raise DataError(
                f"{path.name} is about graph {progress.graph[:16]}, the service has {graph[:16]}; remove the file to apply "
                "the operations to this one too, from the first line"
            )
        return progress

    def write(self, path: Path) -> None:
        temporary = path.with_name(f"{path.name}.new")
        with temporary.open("w") as file:
            file.write(json.dumps(asdict(self)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)


def apply_file(client: Client, file: Path, batch_size: int, upsert: bool, show: bool) -> Applied:
    """Raises DataError, which names the line, ServiceError and errors of httpx. Another call repeats the failed batch.

    Args:
        show: whether to show the progress on standard error.
    """
    size, path = file.stat().st_size, file.with_name(f"{file.name}.progress")
    graph = client.graph().graph
    progress = Progress.read(path, graph)
    operations = skipped = 0
    sequence = None
    for batch in read_batches(file, batch_size, progress):
        Progress(graph, batch.first, batch.last, batch.digest).write(path)
        key = f"{batch.digest}-{batch.first}{'-upsert' if upsert else ''}"
        try:
            answer = client.change_graph(batch.operations, upsert=upsert, idempotency_key=key)
        except ServiceError as error:
            if error.status < 500 and error.status not in UNDECIDED_STATUSES:
                Progress(graph, batch.first, batch.first - 1, batch.before).write(path)
            raise _explain(error, file, batch) from error
        operations, skipped, sequence = operations + answer.applied, skipped + answer.skipped, answer.sequence
        Progress(graph, batch.last + 1, batch.last, batch.digest).write(path)
        if show:
            _show(file.name, batch.end / size, operations)
    return Applied(operations, skipped, progress.first - 1, sequence)


def read_batches(file: Path, size: int, progress: Progress) -> Iterator[Batch]:
    """Yields the batches left to send: first the lines that may have been applied, then `size` operations at a time.

    Raises DataError.
    """
    digest, end = hashlib.sha256(), 0
    before, first, operations, lines = "", progress.first, list[Any](), list[int]()
    number = 0
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number == progress.first:
                before = digest.hexdigest()
            digest.update(line.strip() + b"\n")  # the newline of the last line may come later
            end += len(line)
            if number >= progress.first:
                parsed = _parse(line, f"{file.name}, line {number}")
                operations += parsed
                lines += [number] * len(parsed)
            if number == progress.last and digest.hexdigest() != progress.digest:
                raise _changed(file, progress)
            if operations and (number == progress.last or (number > progress.last and len(operations) >= size)):
                yield Batch(first, number, before, digest.hexdigest(), operations, lines, end)
                before, first, operations, lines = digest.hexdigest(), number + 1, [], []
    if number < progress.last:
        raise _changed(file, progress)
    if operations:
        yield Batch(first, number, before, digest.hexdigest(), operations, lines, end)


def _parse(line: bytes, place: str) -> list[Any]:
    """The operations of a line, which may be empty. The service checks them."""
    if not line.strip():
        return []
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON: {error}") from None
    if isinstance(content, dict) and "op" in content:
        return [content]
    operations = content.get("operations") if isinstance(content, dict) else None
    if not isinstance(operations, list) or len(content) != 1:
        raise DataError(f'{place}: expected an operation, {{"op": ...}}, or {{"operations": [...]}}')
    return operations


def _changed(file: Path, progress: Progress) -> DataError:
    return DataError(
        f"{file.name} was changed: its lines up to {progress.last:,} differ from those sent before. Add operations at its "
        f"end, or put them into another file. {file.name}.progress has the progress"
    )


def _explain(error: ServiceError, file: Path, batch: Batch) -> DataError:
    index = error.details.get("operation")
    if isinstance(index, int) and index < len(batch.lines):
        place = f"line {batch.lines[index]}"
    else:
        place = f"lines {batch.first} to {batch.last}"
    applied = f"the lines before {batch.first} are applied"
    advice = " A smaller --batch makes smaller requests." if error.status == 413 else ""
    return DataError(f"{file.name}, {place}: {error}; {applied}, and the same command continues there.{advice}")


def _show(name: str, share: float, operations: int) -> None:
    bar = "█" * round(share * BAR_WIDTH)
    sys.stderr.write(f"\r{name} {share:4.0%} |{bar:<{BAR_WIDTH}}| {operations:,} operations")
    sys.stderr.write("\n" if share >= 1 else "")
    sys.stderr.flush()
