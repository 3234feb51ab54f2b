"""How tables are read: the choices that flags make and the manifest keeps, so that newer tables are read alike."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from model_store import DataError
from model_store.run_settings import Structural

Impute = Literal["mean", "zero", "flag"]
Dates = Literal["days"]
UnknownEdges = Literal["drop"]


@dataclass(frozen=True)
class Reading:
    """A field is None, empty or False where nothing was chosen. The fields are flags of `sgf-train`, which explains them."""

    id_column: str | None = None
    label_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    feature_columns: tuple[str, ...] = ()
    ignore_columns: tuple[str, ...] = ()
    category_columns: tuple[str, ...] = ()
    impute: Impute | None = None
    dates: Dates | None = None
    unknown_edges: UnknownEdges | None = None
    delimiter: str | None = None
    encoding: str | None = None
    decimal_comma: bool = False
    structural: Structural | None = None

    def to_json(self) -> dict[str, Any]:
        """The choices that were made."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises DataError for a field that this version does not know."""
        if unknown := content.keys() - {option.name for option in fields(cls)}:
            raise DataError(f"the tables were read with the unknown choice {min(unknown)!r}: a newer version wrote it")
        choices: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
        }
        return cls(**choices)

    def __str__(self) -> str:
        """As flags: --id-column node --impute mean."""
        words: list[str] = []
        for name, value in self.to_json().items():
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(",".join(value) if isinstance(value, list) else value)
        return shlex.join(words)
