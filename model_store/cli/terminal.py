"""What the commands of all packages share: default options, Ctrl-C, and output to a terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from model_store.errors import DataError

INTERRUPTED = 130
"""The exit code after Ctrl-C, by the convention of shells: 128 + the number of SIGINT."""


def interruptible(program: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorates the main function of a command: Ctrl-C prints one line, also while modules are imported."""

    def decorate(main: Callable[..., int]) -> Callable[..., int]:
        @wraps(main)
        def run(arguments: Sequence[str] | None = None) -> int:
            try:
                return main(arguments)
            except KeyboardInterrupt:
                print_error(program, "interrupted")
                return INTERRUPTED

        return run

    return decorate


def print_error(program: str, message: object) -> None:
    start = "\r" if sys.stderr.isatty() else ""  # overwrites the ^C that a terminal shows
    sys.stderr.write(f"{start}{program}: {message}\n")


def default_store() -> Path:
    """The default of --store. An empty environment variable counts as unset, here and below."""
    return Path(os.environ.get("SGF_STORE") or "var/models")


def default_device() -> str:
    """The default of --device."""
    return os.environ.get("SGF_DEVICE") or "auto"


def default_model() -> str | None:
    """The default of --model. With None, most commands use the only model of the store."""
    return os.environ.get("SGF_MODEL") or None


def default_log() -> dict[str, Any] | None:
    """The log of graph changes, by the same settings as the service: the address of Redis, or None for files of the store.

    Raises DataError.
    """
    if (kind := os.environ.get("SGF_GRAPH_LOG") or "file") == "file":
        return None
    url, password_file = os.environ.get("SGF_REDIS_URL"), os.environ.get("SGF_REDIS_PASSWORD_FILE")
    if kind != "redis" or not url:
        raise DataError(f"SGF_GRAPH_LOG is {kind!r}, expected file, or redis with SGF_REDIS_URL")
    return {"url": url, "password": Path(password_file).read_text().strip() if password_file else None}


def at_least_one(text: str) -> int:
    """The argparse type of a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def print_output(text: str) -> None:
    """Prints to standard output. A closed pipe is not an error: the reader, e.g. `head`, has read enough."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python flushes again at exit, and fails


def format_bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def describe_publication(model: str, version: int, nodes: int, live: bool) -> str:
    """Returns a line that names the published version and the command that activates it."""
    state = "live" if live else f"not live yet: sgf-models --model {model} activate {version}"
    return f"published {model} {version}, {nodes:,} nodes, {state}"
