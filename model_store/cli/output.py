"""What a command prints: all of it, or as much as whoever reads it wants."""

from __future__ import annotations

import os
import sys


def put_out(text: str) -> None:
    """To standard output. Quietly, where the other end was closed, as `head` does once it has seen enough."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again on its way out
