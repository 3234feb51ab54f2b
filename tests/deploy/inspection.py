"""What must be true of the serving image as it lies there: its size, its packages, its labels, and what is not inside."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from tests.deploy.tools import ROOT

LARGEST_BYTES = 350_000_000
LABELS = "org.opencontainers.image."


def check_small(packages: set[str], size_bytes: int) -> None:
    """Raises AssertionError: something is missing, or there is something of training, or it is large."""
    assert {"service", "onnxruntime", "numpy"} <= packages, f"not all of the service is there: {sorted(packages)}"
    unwanted = {"torch", "sklearn", "pandas", "pip", "setuptools"} & packages
    assert not unwanted, f"for serving nobody needs {sorted(unwanted)}"
    assert size_bytes < LARGEST_BYTES, f"it has {size_bytes / 1e6:.0f} MB"


def check_clean(root: Path, config: dict[str, Any]) -> None:
    """Raises AssertionError: there is something of the machine that built it.

    What the build needed to reach a registry was mounted, and is gone; empty files are left where buildah mounted.
    """
    for left in (root / "etc/pip.conf", *(root / "run/registry").glob("*")):
        assert not left.exists() or left.stat().st_size == 0, f"{left} was left"
    told = json.dumps(config)
    for part in (str(ROOT), "PIP_"):
        assert part not in told, f"{part} is in the image's configuration"


def check_configuration(config: dict[str, Any], revision: str) -> None:
    """Raises AssertionError: an engine would start, stop or name it otherwise than we say."""
    expected = {"Entrypoint": ["sgf-serve"], "User": "10001:10001", "StopSignal": "SIGTERM"}
    for name, value in expected.items():
        assert config[name] == value, f"{name} is {config[name]}"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    labels = {"title": "sgformer-serving", "licenses": "Apache-2.0", "version": version, "revision": revision}
    for name, value in labels.items():
        assert config["Labels"].get(LABELS + name) == value, f"the label {name} is {config['Labels'].get(LABELS + name)}"
