"""What this machine's pip needs to reach its registry, for a pip inside another root: an image, a fresh machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.deploy.tools import run

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def mounts(folder: Path) -> dict[Path, Path]:
    """What is to be mounted, and where inside: pip's settings, certificates and local folders of wheels.

    Args:
        folder: where the settings, as they are to be inside, are written; it must stay for as long as they are mounted.
    """
    listed = run(sys.executable, "-m", "pip", "config", "list").stdout
    settings = dict(re.findall(r"^(?:global|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    found = {place: place for place in _folders(" ".join(settings.values())) if place.is_dir()}
    certificates = Path(settings.get("cert", CERTIFICATES))
    if certificates.exists():
        (folder / "ca.crt").write_bytes(certificates.read_bytes())
        settings["cert"] = "/run/registry/ca.crt"
        found[folder / "ca.crt"] = Path(settings["cert"])
    lines = ["[global]", *(f"{name} = {value}" for name, value in settings.items())]
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    found[folder / "pip.conf"] = Path("/etc/pip.conf")
    return found


def _folders(settings: str) -> set[Path]:
    """Local folders among them; of an index its parent, because its pages link to files beside it."""
    indexes = {Path(place).parent for place in re.findall(r"file://(\S+)", settings)}
    return indexes | {Path(place) for place in settings.split() if place.startswith("/")}
