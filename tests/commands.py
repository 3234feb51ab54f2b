"""The commands of the pages: fenced `sh` blocks, and indented lines that begin as a command of the pages does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PROGRAMS = r"(?:\$ )?(?:(?:make|curl|docker|kubectl|git|cp|du|sgf-[a-z]+|pip|python3?|openssl|sed|helm|export) |[a-z]+=)"
INDENTED = re.compile(rf"^    ({PROGRAMS}.*(?:\n      \S.*)*)", re.MULTILINE)
"""A line that goes on is indented further."""
FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    page: str
    text: str


def commands_of(root: Path, page: str) -> list[Command]:
    text = (root / page).read_text()
    fenced = [line for block in FENCED.findall(text) for line in block.replace("\\\n", "").splitlines()]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = [re.split(r"  +(?=[a-z])", one.removeprefix("$ "))[0] for one in INDENTED.findall(rest)]
    found = [line.strip() for line in (*indented, *fenced)]
    return [Command(page, line) for line in found if line and not line.startswith("#")]
