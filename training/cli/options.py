"""The options of the `sgf-train` commands, as argparse has parsed them, with their types."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from sgformer.config import Task
from training.data.splits import Shares
from training.release.delivery import Mode


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command has. A command without one of these flags has the default."""

    json: bool = False
    quiet: bool = False
    at_most: int | None = None
    events: Path | None = None
    only_while: Path | None = None

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        values = vars(namespace)
        return cls(**{option.name: values[option.name] for option in fields(cls) if option.name in values})


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    dataset: str | None
    data: Path | None
    split: int | Shares
    task: Task | None
    recipe: str | None
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings that were given as flags."""

    @classmethod
    def of(cls, namespace: argparse.Namespace) -> Self:
        values = vars(namespace)
        given = {name: values[name] for name in values["settings"] if values[name] is not None}
        return super().of(argparse.Namespace(**values | {"settings": given}))


@dataclass(frozen=True, kw_only=True)
class StoreOptions(Options):
    store: Path
    model: str | None
    activate: Mode
    keep: int | None
    job: str | None


@dataclass(frozen=True, kw_only=True)
class TrainOptions(DataOptions, StoreOptions):
    warm_start: bool
    resume: bool
    checkpoint_every: float
    no_checkpoint: bool
    tune: int | None
    no_publish: bool
    states: str


@dataclass(frozen=True, kw_only=True)
class TuneOptions(DataOptions):
    trials: int
    splits: int | None
    out: Path
    study: Path | None


@dataclass(frozen=True, kw_only=True)
class RefreshOptions(StoreOptions):
    data: Path | None
    dataset: str | None
    source: int | None


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    table: str
    seeds: int
    only: list[str] | None
    results: Path
