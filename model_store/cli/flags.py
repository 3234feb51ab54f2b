"""What the command lines of the store and of training share: where the models are, which one is meant, and counts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def default_store() -> Path:
    """Of --store. A variable that is set to nothing counts as unset, here and below."""
    return Path(os.environ.get("SGF_STORE") or "var/models")


def default_model() -> str | None:
    """Of --model; None leaves it to the command, which may take the only one that there is."""
    return os.environ.get("SGF_MODEL") or None


def at_least_one(text: str) -> int:
    """The argparse type of a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
