"""The notebooks of examples/ run from the first cell to the last, and print what their text promises."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"
PRINTED = {
    "first_model.ipynb": [
        "1836 nodes, 11 columns, 10 classes",
        "games exact",
        "equal: True",
        "the edge makes a game more probable: True",
    ]
}


def test_every_notebook_is_run_here() -> None:
    assert [path.name for path in EXAMPLES.glob("*.ipynb")] == list(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_notebook_prints_what_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")  # as in an activated environment
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    printed = [output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.name == "stdout"]
    assert "".join(printed).splitlines()[-len(PRINTED[name]) :] == PRINTED[name]
