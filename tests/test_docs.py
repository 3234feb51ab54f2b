"""Documents that can drift from the code are run or compared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_python_example_of_the_readme_runs_and_prints_what_it_says() -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code
    promised = re.search(r"# (exact .*)$", code[1], re.MULTILINE)
    assert promised
    result = subprocess.run([sys.executable, "-W", "error", "-c", code[1]], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == promised[1]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", (ROOT / "README.md").read_text())) <= targets


def test_every_module_of_the_mathematics_is_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    helpers = {"__init__", "errors", "weights", "arrays", "torch_arrays"}
    for path in (ROOT / "sgformer").glob("*.py"):
        assert path.stem in helpers or f"`{path.stem}`" in page, f"{path.stem} is not described"
