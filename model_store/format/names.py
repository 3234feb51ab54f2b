"""What models and versions may be called: nothing that could leave the store, hide in it, or surprise a shell."""

from __future__ import annotations

import re

from model_store.errors import InvalidName

_MODEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")


def checked_model(name: str) -> str:
    if not isinstance(name, str) or not _MODEL.fullmatch(name):
        raise InvalidName(
            f"a model cannot be called {name!r}: expected 1 to 64 of a-z, 0-9, '-' and '_', beginning with a letter or digit"
        )
    return name


def checked_version(version: int | str) -> int:
    """A version as a number, from a number or its digits."""
    if isinstance(version, bool) or not _VERSION.fullmatch(str(version)):
        raise InvalidName(f"{version!r} is no version: versions are the whole numbers 1, 2, 3 ...")
    return int(version)


def is_model(name: str) -> bool:
    return _MODEL.fullmatch(name) is not None


def is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None
