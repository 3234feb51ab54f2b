"""docker-compose.yml, read: what its services are given where .env says nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import ROOT

COMPOSE = ROOT / "docker-compose.yml"
ENV_EXAMPLE = ROOT / "deploy" / ".env.example"
VARIABLE = re.compile(r"\$\{(\w+):?-([^}]*)\}")
"""${NAME:-default} or ${NAME-default}."""


def compose(text: str | None = None) -> dict[str, Any]:
    """As it is written, variables and all."""
    found: dict[str, Any] = yaml.safe_load(text or COMPOSE.read_text())
    return found


def with_defaults(text: str) -> str:
    """Each variable replaced by its default."""
    return VARIABLE.sub(r"\2", text)


def settled() -> dict[str, Any]:
    """As Compose sees it without .env."""
    return compose(with_defaults(COMPOSE.read_text()))


def environment(service: str, **changed: str) -> dict[str, str]:
    """What it is given where .env says nothing, but for these."""
    given: dict[str, str] = settled()["services"][service]["environment"]
    return {name: str("" if value is None else value) for name, value in given.items()} | changed


def password_file(folder: Path) -> dict[str, str]:
    """The setting, with a file that is there: the start reads it."""
    (folder / "password").write_text("a password\n")
    return {"SGF_REDIS_PASSWORD_FILE": str(folder / "password")}


def example() -> dict[str, str]:
    """What .env.example sets."""
    lines = ENV_EXAMPLE.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
