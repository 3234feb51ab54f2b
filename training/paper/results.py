"""docs/results.json: the scores of all tables. A cell is stored after every run, so a table that was stopped continues."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from training.paper.contenders import Run
from training.paper.unseen_graphs import SEARCHED, SearchProgress

RESULTS = Path(__file__).parents[2] / "docs" / "results.json"
UNFINISHED = "search so far"


@dataclass(frozen=True)
class Entry:
    """The scores of a cell of a table."""

    scores: list[float] = field(default_factory=list)
    """Test scores in per cent, one per run."""
    validation: list[float] = field(default_factory=list)
    seconds: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)
    """The mean time of an epoch, one per run; only for the models of `research_training`."""
    settings: str = ""
    """The digest of the settings."""
    search: str = ""
    """How the settings were chosen."""
    command: str = ""

    def __str__(self) -> str:
        return mean_and_deviation(self.scores)

    def with_run(self, run: Run, seconds: float) -> Entry:
        return replace(
            self,
            scores=[*self.scores, run.test],
            validation=self.validation + ([] if run.validation is None else [run.validation]),
            epoch_seconds=self.epoch_seconds + ([] if run.epoch_seconds is None else [run.epoch_seconds]),
            seconds=self.seconds + seconds,
        )


Table = dict[str, dict[str, dict[str, Any]]]
"""By data set and label, the fields of `Entry`."""


class ResultsFile:
    """The tables of a JSON file. Every change of a table writes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables = self._read()

    def _read(self) -> dict[str, Table]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def entry(self, table: str, dataset: str, label: str, settings: str) -> Entry | None:
        """The stored cell, if it was run with these settings; it may have fewer runs than are wanted."""
        content = self.tables.get(table, {}).get(dataset, {}).get(label, {})
        if content.get("settings") != settings:
            return None
        return Entry(**{name: value for name, value in content.items() if name in Entry.__dataclass_fields__})

    def record(self, table: str, dataset: str, label: str, entry: Entry) -> None:
        self._put(table, dataset, label, asdict(entry))

    def record_progress(self, dataset: str, progress: SearchProgress) -> None:
        """Stores how far a search is; the page shows it until the search has an entry."""
        self._put("defaults", dataset, UNFINISHED, asdict(progress))

    def _put(self, table: str, dataset: str, label: str, content: dict[str, Any]) -> None:
        self.tables = self._read()  # another process may have written other cells since
        entries = self.tables.setdefault(table, {}).setdefault(dataset, {})
        entries[label] = content | {"date": datetime.now(UTC).date().isoformat(), "machine": platform.machine()}
        if label == SEARCHED:
            entries.pop(UNFINISHED, None)
        temporary = self.path.with_suffix(".tmp")  # so that a kill leaves the old file or the new one
        temporary.write_text(json.dumps(self.tables, indent=1) + "\n")
        temporary.replace(self.path)


def mean_and_deviation(scores: Sequence[float]) -> str:
    return f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"
