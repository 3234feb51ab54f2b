"""Helpers of the tests of damage and forgery."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_store import ModelVersions, SnapshotError


def refused(folder: Path, file: str, reason: str, verify: Any = "full") -> None:
    """Checks that version 1 is refused with this reason, and that version 2 still opens."""
    versions = ModelVersions(folder.parent)
    with pytest.raises(SnapshotError, match=reason) as caught:
        versions.open(1, verify)
    assert caught.value.file == file
    versions.open(2).close()


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest and updates all hashes, as an attacker who knows the format would."""
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
    """For `forge`: updates only the hashes."""


def drop_embeddings(folder: Path, content: dict[str, Any]) -> None:
    """Removes the optional embeddings and their map."""
    content["embeddings"] = None
    for name in ("states/map.npy", "states/unit_embeddings.npy"):
        (folder / name).unlink()
        del content["files"][name]
