"""Telling without saying where things lie on this machine, which is nobody's business: of a path only the name is shown.

Known folders are taken out first and as they are, since only they can be told apart from a sentence where they hold spaces.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from service.settings import Settings

_QUOTED = r"""(?<=['"])/[^'"\n]+(?=['"])"""
_BARE = r"""(?<![\w./])(?:/[^\s/:'"]+)+"""
_URL = r"""\bfile://(?:/[^\s/:'"]+)+"""
_PATH = re.compile(f"{_URL}|{_QUOTED}|{_BARE}")


class Discretion:
    def __init__(self, *roots: Path) -> None:
        known = {str(path) for root in roots for path in (root, root.resolve()) if path.is_absolute() and path != Path("/")}
        longest_first = "|".join(re.escape(root) for root in sorted(known, key=len, reverse=True))
        self._roots = re.compile(rf"(?:\bfile://)?(?<![\w.])(?:{longest_first})(?![\w-]|\.\w)") if known else None

    @classmethod
    def of(cls, settings: Settings) -> Discretion:
        return cls(settings.store, settings.data_root, Path(sys.prefix))

    def text(self, text: str) -> str:
        known = text if self._roots is None else self._roots.sub("...", text)
        return _PATH.sub(lambda found: f".../{found.group().rpartition('/')[2]}", known)

    def line(self, line: str) -> str:
        """One line of JSON, text by text: as JSON, a path may follow the n of an escaped newline, and hide behind it."""
        try:
            return json.dumps(self._value(json.loads(line)))
        except (ValueError, RecursionError):  # a line that a full disk has cut short
            return self.text(line)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(one) for one in value]
        if isinstance(value, dict):
            return {name: self._value(one) for name, one in value.items()}
        return value
