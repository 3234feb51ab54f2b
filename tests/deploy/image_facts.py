"""What the Dockerfile and the project say, for those who run the images: ports, folders, programs, how long ending takes."""

from __future__ import annotations

import re
import shlex
import signal
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from service.__main__ import serve
from service.settings import THREAD_LIMITS, Settings
from service.telemetry import logs
from tests.deploy.tools import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROGRAMS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
RECIPES = {path.stem for path in (ROOT / "training" / "recipes").glob("*.toml")}
TARGETS = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))


def variable(name: str) -> str:
    """Of the images' environment."""
    found = re.search(rf"\b{name}=(\S+)", DOCKERFILE)
    assert found is not None, f"the Dockerfile does not set {name}"
    return found[1]


def drain_seconds() -> float:
    """How long the service may take to end, as it tells uvicorn."""
    told: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "set_up", lambda: None)
        patch.setattr(uvicorn, "run", lambda *_, **options: told.update(options))
        patch.setattr(signal, "signal", lambda *_: None)
        for name in ("PROMETHEUS_MULTIPROC_DIR", *THREAD_LIMITS):
            patch.setenv(name, "")  # restored: serving sets it
        serve(Settings())
    return float(told["timeout_graceful_shutdown"])


def unknown_words(command: list[str]) -> Iterator[str]:
    """Programs and recipes in a command, `sh -c` or not, that are not ours though they look it."""
    words = [word for part in command for word in shlex.split(part)]
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("sgf-") and word not in PROGRAMS:
            yield f"there is no program {word}"
        if before == "--recipe" and word not in RECIPES:
            yield f"there is no recipe {word}"


def below(place: str, folder: str) -> bool:
    return f"{place}/".startswith(f"{folder}/")
