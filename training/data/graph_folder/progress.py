"""The type of a function that receives the progress of an import."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Report: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of a stage, its work done so far, and its total work."""


def no_report(_stage: str, _done: int, _total: int) -> None: ...
