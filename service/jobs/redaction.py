"""Redacts absolute paths from logs and events: only the last component of a path is shown."""

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


class Redaction:
    def __init__(self, *roots: Path) -> None:
        # Known folders are replaced first: a path with spaces can be told from a sentence only if it is known.
        known = {str(path) for root in roots for path in (root, root.resolve()) if path.is_absolute() and path != Path("/")}
        longest_first = "|".join(re.escape(root) for root in sorted(known, key=len, reverse=True))
        self._roots = re.compile(rf"(?:\bfile://)?(?<![\w.])(?:{longest_first})(?![\w-]|\.\w)") if known else None

    @classmethod
    def of(cls, settings: Settings) -> Redaction:
        return cls(settings.store, settings.data_root, Path(sys.prefix))

    def text(self, text: str) -> str:
        known = text if self._roots is None else self._roots.sub("...", text)
        return _PATH.sub(lambda path: f".../{path.group().rpartition('/')[2]}", known)

    def line(self, line: str) -> str:
        """Redacts each string of a JSON line by itself: the n of an escaped newline would hide a path."""
        try:
            return json.dumps(self._value(json.loads(line)))
        except (ValueError, RecursionError):  # a full disk truncated the line
            return self.text(line)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            return {name: self._value(item) for name, item in value.items()}
        return value
