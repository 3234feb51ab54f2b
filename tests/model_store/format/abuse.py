"""What the tests of damage and of forgery share: the files of a snapshot, how one is refused, and a forger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_store import ModelVersions, SnapshotError


def refused(folder: Path, file: str, reason: str, verify: Any = "full") -> None:
    """This version is refused with this reason; the other one still opens."""
    versions = ModelVersions(folder.parent)
    with pytest.raises(SnapshotError, match=reason) as caught:
        versions.open(1, verify)
    assert caught.value.file == file
    versions.open(2).close()


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest that was changed by somebody who knows the format: its hashes fit again."""
    content = json.loads((folder / "manifest.json").read_text())
    for name in content["files"]:
        if (folder / name).is_file():
            data = (folder / name).read_bytes()
            content["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(content)
    content.pop("snapshot")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    content["snapshot"] = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content))


def unchanged(_content: dict[str, Any]) -> None:
    """For `forge`: only the hashes of the files are made to fit."""
