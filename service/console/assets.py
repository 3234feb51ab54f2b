"""The built files of the console, and the headers that they are served with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DIST = Path(__file__).parent / "dist"
PAGE = "index.html"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Allows no inline scripts and styles, no other hosts, no frames. So a class name that contains markup cannot run code."""
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str
    headers: dict[str, str]


def read_assets(folder: Path = DIST) -> dict[str, Asset]:
    """The files by name. The names of scripts and styles contain a hash of their content, so browsers may cache them."""
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in MEDIA_TYPES]
    return {path.name: Asset(path.read_bytes(), MEDIA_TYPES[path.suffix], _headers(path.name)) for path in paths}


def _headers(name: str) -> dict[str, str]:
    cache = "no-cache" if name == PAGE else "public, max-age=31536000, immutable"
    return HEADERS | {"cache-control": cache}
