"""Documents that can drift from the code are run or compared."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_python_examples_of_the_readme_print_what_they_say(tmp_path: Path) -> None:
    """All examples, one after another: each line that prints has what it prints beside it."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    promised = re.findall(r"^\s*print\(.*  # (.*)$", code, re.MULTILINE)
    assert len(promised) == code.count("print(") == 2
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.splitlines() == promised


@pytest.mark.parametrize(
    "page", ["README.md", "deploy/README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", (ROOT / "README.md").read_text())) <= targets


def test_the_site_builds_without_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    assert built(ROOT, tmp_path / "site") == ""
    page = (tmp_path / "site" / "index.html").read_text()
    assert "https://fonts" not in page
    assert "cdn" not in page


def test_a_link_that_leads_nowhere_stops_the_site(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "concepts.md").open("a") as page:
        page.write("[nowhere](nowhere.md)")
    assert "nowhere.md" in built(tmp_path, tmp_path / "site")


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert f": {path.name}\n" in menu, f"{path.name} is not in the nav of mkdocs.yml"


def built(root: Path, site: Path) -> str:
    """What mkdocs complains about; empty where it builds."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("room", ["sgformer", "model_store", "training", "service", "service/jobs"])
def test_every_module_is_in_the_architecture_page(room: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    helpers = {"__init__", "errors", "weights", "arrays", "torch_arrays"}
    for path in (ROOT / room).glob("*.py"):
        assert path.stem in helpers or f"`{path.stem}`" in page, f"{path.stem} is not described"
