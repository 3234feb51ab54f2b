"""The files that a deployment is made of, parsed: the Dockerfile, docker-compose.yml, .env.example."""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml

from service.__main__ import serve
from service.settings import THREAD_LIMITS, Settings
from service.telemetry import logs
from tests.deploy.tools import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = ROOT / "docker-compose.yml"
ENV_EXAMPLE = ROOT / "deploy" / ".env.example"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RECIPES = {path.stem for path in (ROOT / "training" / "recipes").glob("*.toml")}
VARIABLE = re.compile(r"\$\{(\w+):?-([^}]*)\}")
"""${NAME:-default} or ${NAME-default}."""
REDIS_HEALTH = 'REDISCLI_AUTH="$(cat /run/redis-auth/password)" redis-cli --user sgf ping | grep -q PONG'


def compose(text: str | None = None) -> dict[str, Any]:
    """The compose file with its variables as they are written."""
    parsed: dict[str, Any] = yaml.safe_load(text or COMPOSE.read_text())
    return parsed


def compose_with_defaults() -> dict[str, Any]:
    """The compose file as Compose reads it without .env."""
    return compose(VARIABLE.sub(r"\2", COMPOSE.read_text()))


def password_file(folder: Path) -> dict[str, str]:
    """The setting of the password of Redis, with a file that exists: the service reads it when it starts."""
    (folder / "password").write_text("a password\n")
    return {"SGF_REDIS_PASSWORD_FILE": str(folder / "password")}


def env_example() -> dict[str, str]:
    lines = ENV_EXAMPLE.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def image_variable(name: str) -> str:
    """The value of an environment variable in the images."""
    (value,) = re.findall(rf"\b{name}=(\S+)", DOCKERFILE)
    return str(value)


def drain_seconds() -> float:
    """How long the service may take to answer its last requests, as it tells uvicorn."""
    options: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "set_up", lambda _: None)
        patch.setattr(uvicorn, "run", lambda *_, **arguments: options.update(arguments))
        patch.setattr(signal, "signal", lambda *_: None)
        for name in ("PROMETHEUS_MULTIPROC_DIR", *THREAD_LIMITS):
            patch.setenv(name, "")  # `serve` sets it; the patch restores it
        serve(Settings())
    return float(options["timeout_graceful_shutdown"])


def check_words(command: list[str]) -> None:
    """Raises AssertionError: a command, `sh -c` or not, names a program or a recipe of ours that does not exist."""
    words = [word for part in command for word in shlex.split(part)]
    assert {word for word in words if word.startswith("sgf-")} <= set(PROJECT["project"]["scripts"]), words
    assert {after for word, after in itertools.pairwise(words) if word == "--recipe"} <= RECIPES, words


def is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")
