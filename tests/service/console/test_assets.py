"""The built files: they belong to the sources, need no other host, are small, and have strict headers."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from service.console.assets import DIST, POLICY
from tests.service.serving import in_thread, refused

FOLDER = DIST.parent
SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
MAX_GZIPPED_BYTES = 300_000


def hash_of_sources() -> str:
    """As vite.config.ts computes it."""
    files = [*(FOLDER / name for name in SOURCES), *(path for path in (FOLDER / "src").rglob("*") if path.is_file())]
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.relative_to(FOLDER).as_posix()):
        digest.update(f"{path.relative_to(FOLDER).as_posix()}\n".encode() + path.read_bytes() + b"\n")
    return digest.hexdigest()


def test_the_built_files_belong_to_the_sources() -> None:
    assert (DIST / "sources.sha256").read_text().strip() == hash_of_sources(), "the sources have changed: run `make console`"


@pytest.mark.skipif(os.environ.get("VERIFY_CONSOLE") != "1", reason="NOT RUN: needs npm; `make verify-console` runs it")
def test_the_sources_give_the_built_files(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "console", ignore=shutil.ignore_patterns("dist", "node_modules", "__pycache__"))
    for command in (("npm", "ci"), ("npm", "run", "build")):
        subprocess.run(command, cwd=tmp_path / "console", check=True)
    built = {path.name: path.read_bytes() for path in (tmp_path / "console" / "dist").iterdir()}
    assert built == {path.name: path.read_bytes() for path in DIST.iterdir()}


def test_the_page_and_its_files_are_small_and_need_no_other_host(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert sorted({Path(file).suffix for file in files}) == [".css", ".js", ".svg"]
    responses = [page, *(client.get(file) for file in files)]
    assert all(response.status_code == 200 for response in responses)
    assert sum(len(gzip.compress(response.content)) for response in responses) < MAX_GZIPPED_BYTES
    used = "".join(response.text for response in responses)
    assert set(re.findall(r"https?://([\w.-]+)", used)) <= {"www.w3.org"}, "the name space of SVG and MathML, no address"


def test_the_headers_are_strict(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "default-src 'none'" in POLICY
    assert page.headers["cache-control"] == "no-cache"
    script = client.get(re.search(r'src="([^"]+\.js)"', page.text)[1])  # type: ignore[index]  # it is there
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert script.headers["content-security-policy"] == POLICY
    assert "immutable" in script.headers["cache-control"]
    assert "<script>" not in page.text
    assert "<style" not in page.text


def test_other_files_are_not_served(client: httpx.Client) -> None:
    for name in ("sources.sha256", "assets.py", "..%2Fassets.py", "index.html%00", ""):
        refused(client.get(f"/console/{name}"), 404, "not_found")


def test_the_page_is_public_and_the_data_is_not(store: Path) -> None:
    with in_thread(store, api_keys=("k" * 16,)) as client:
        page = client.get("/")
        assert page.status_code == 200
        assert all(client.get(file).status_code == 200 for file in re.findall(r'(?:src|href)="([^"]+)"', page.text))
        assert [client.get(path).status_code for path in ("/models", "/nodes", "/nodes/1")] == [401] * 3
