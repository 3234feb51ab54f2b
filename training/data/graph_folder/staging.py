"""A folder that appears complete or not at all: written beside its place, flushed, and renamed.

A killed import leaves a hidden folder beside its place. The next import to the same place removes it, unless the process
that writes it lives: a writer holds the lock of a file beside the folder, which the kernel releases when the process dies.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from model_store import DataError
from model_store.versions.durable import make_folder, sync, sync_tree
from model_store.versions.locks import exclusive, exclusive_unless_held

LOCK = ".lock"


@contextmanager
def staged(place: Path) -> Iterator[Path]:
    """Yields an empty folder, which takes its place when the caller is done, and is removed if the caller fails.

    Raises:
        DataError: there is something at this place.
    """
    place = place.resolve()
    _require_free(place)
    make_folder(place.parent)
    _remove_leftovers(place)
    hidden = place.with_name(f"{_prefix(place)}{secrets.token_hex(6)}")
    lock = hidden.with_name(hidden.name + LOCK)
    with ExitStack() as stack:
        stack.callback(lock.unlink, missing_ok=True)
        stack.enter_context(exclusive(lock))
        stack.callback(shutil.rmtree, hidden, ignore_errors=True)
        hidden.mkdir()
        yield hidden
        sync_tree(hidden)
        _require_free(place)
        hidden.rename(place)
        sync(place.parent)


def _require_free(place: Path) -> None:
    if place.exists():
        raise DataError(f"{place} exists: an import does not replace it; remove it, or choose another folder")


def _prefix(place: Path) -> str:
    return f".{place.name}.importing-"


def _remove_leftovers(place: Path) -> None:
    for lock in place.parent.glob(f"{_prefix(place)}*{LOCK}"):
        with exclusive_unless_held(lock) as is_free:
            if is_free:
                shutil.rmtree(lock.with_name(lock.name.removesuffix(LOCK)), ignore_errors=True)
                lock.unlink(missing_ok=True)
