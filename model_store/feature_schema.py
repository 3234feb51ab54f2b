"""The named feature columns of a model: what a user calls them, what values they take, and their positions in a vector.

A model reads vectors of numbers. A number, boolean or date takes one position (dates are days since 1970-01-01), a category
one 0/1 position per known category. A column with a flag takes one more, which is 1 if the value was missing.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from itertools import islice
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DataError, FeatureValueError
from model_store.suggestions import did_you_mean

Kind = Literal["number", "boolean", "category", "date"]
EPOCH = date(1970, 1, 1)
MAX_NUMBER = float(np.finfo(np.float32).max)
"""The largest float32: models compute in float32."""
MAX_CATEGORIES_SHOWN = 10
MAX_COMPARED = 300
"""Most names that are compared for a suggestion: a request with a mistake must not take more than a few milliseconds."""
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "kind": str,
    "categories": list,
    "fill": (int, float, str),
    "flag": bool,
}


@dataclass(frozen=True)
class FeatureColumn:
    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    """In the order of their positions; for the kind `category` only."""
    fill: float | str | None = None
    """Replaces a missing value: a category, an ISO date, or a number (of a date, the days since 1970-01-01; of a boolean,
    0 to 1). None: a missing value is an error."""
    flag: bool = False
    """Whether the column has one more position, which is 1 if the value was missing."""

    def __post_init__(self) -> None:
        _require(
            isinstance(self.name, str) and self.name != "", f"a feature column is called {self.name!r}, expected a name"
        )
        _require(self.kind in get_args(Kind), f"{self} is of kind {self.kind!r}, expected {', '.join(get_args(Kind))}")
        is_category = self.kind == "category"
        _require(bool(self.categories) == is_category, f"{self}: categories are for the kind category, which needs them")
        _require(all(isinstance(name, str) for name in self.categories), f"{self}: a category is not a string")
        _require(len(set(self.categories)) == len(self.categories), f"{self} has a category twice")
        _require(self.fill is not None or not self.flag, f"{self} has a flag for missing values, but no value to fill in")
        if self.fill is not None:
            self._encode_fill()  # raises if the fill is not a value of this column

    def __str__(self) -> str:
        return f"feature {self.name!r}"

    @property
    def width(self) -> int:
        return max(1, len(self.categories)) + self.flag

    @property
    def position_names(self) -> list[str]:
        names = [f"{self.name}={category}" for category in self.categories] or [self.name]
        return [*names, f"{self.name} is missing"] if self.flag else names

    def encode(self, value: Any) -> list[float]:
        """Returns the positions of one value; None is a missing value. Raises FeatureValueError."""
        if value is None and self.fill is None:
            raise FeatureValueError(self.name, f"is missing, expected {self._expected}")
        number = self._encode_fill() if value is None else self._encode_value(value)
        positions = [float(position == number) for position in range(len(self.categories))] or [number]
        return [*positions, float(value is None)] if self.flag else positions

    def decode(self, positions: NDArray[Any]) -> bool | float | str | None:
        """Returns the value that these positions encode; None for a missing value, or if they encode no category."""
        if self.flag and positions[-1] == 1:
            return None
        if self.kind == "category":
            (hot,) = np.nonzero(positions[: len(self.categories)])
            return self.categories[hot[0]] if len(hot) == 1 and positions[hot[0]] == 1 else None
        number = float(positions[0])
        if self.kind == "boolean" and number in (0, 1):
            return bool(number)
        if self.kind == "date" and _days(date.min) <= number <= _days(date.max):
            return (EPOCH + timedelta(days=int(np.floor(number)))).isoformat()
        return number

    @property
    def _expected(self) -> str:
        if self.kind == "category":
            more = len(self.categories) - MAX_CATEGORIES_SHOWN
            return f"one of {', '.join(self.categories[:MAX_CATEGORIES_SHOWN])}" + (f" and {more} more" if more > 0 else "")
        return {"number": "a number", "boolean": "true or false", "date": "a date such as 2024-01-31"}[self.kind]

    def _encode_value(self, value: Any) -> float:
        """Returns the number of a value; of a category, its position."""
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if self.kind == "number" and is_number and abs(value) <= MAX_NUMBER:  # false for NaN
            return float(value)
        if self.kind == "boolean" and isinstance(value, bool | np.bool_ | Real) and value in (0, 1):
            return float(value)
        if self.kind == "date" and (days := _parse_date(value)) is not None:
            return days
        if self.kind == "category" and isinstance(value, str) and value in self._category_positions:
            return self._category_positions[value]
        suggestion = did_you_mean(value, self.categories[:MAX_COMPARED], repr) if isinstance(value, str) else ""
        raise FeatureValueError(self.name, f"is {reprlib.repr(value)}, expected {self._expected}{suggestion}")

    def _encode_fill(self) -> float:
        """As `_encode_value`, but a number, e.g. a mean, also fills a boolean or a date."""
        if self.kind == "category" or isinstance(self.fill, str):
            return self._encode_value(self.fill)
        return FeatureColumn(self.name, "number")._encode_value(self.fill)

    @cached_property
    def _category_positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.categories)}


@dataclass(frozen=True)
class FeatureSchema:
    """The feature columns of a model in the order of their positions."""

    columns: tuple[FeatureColumn, ...]

    def __post_init__(self) -> None:
        _require(len(self.columns) > 0, "a feature schema has no columns, expected one at least")
        _require(len(self._by_name) == len(self.columns), "a feature schema has two columns with the same name")

    @cached_property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    @cached_property
    def position_names(self) -> list[str]:
        return [name for column in self.columns for name in column.position_names]

    def encode(self, values: Mapping[str, Any]) -> NDArray[np.float64]:
        """Returns the vector of a node. A name that is absent or None is a missing value.

        Raises:
            FeatureValueError: a name is unknown, or a value is missing or not valid for its column.
        """
        for name in values:
            if name not in self._by_name:
                suggestion = did_you_mean(str(name), islice(self._by_name, MAX_COMPARED), repr)
                suggestion = suggestion or f"; the first known names: {self._first_names}"
                raise FeatureValueError(reprlib.repr(name).strip("'\""), f"is not a feature of this model{suggestion}")
        numbers = self._filled.copy()  # the cost depends on the number of values, not of columns
        for column in self._required:
            if values.get(column.name) is None:
                column.encode(None)  # raises
        for name, value in values.items():
            if value is not None:
                positions = self._by_name[name].encode(value)
                start = self._starts[name]
                numbers[start : start + len(positions)] = positions
        return np.array(numbers)

    def decode(self, vector: NDArray[Any]) -> dict[str, bool | float | str | None]:
        """The inverse of `encode`, except for values that were filled in."""
        if np.shape(vector) != (self.width,):
            raise DataError(f"a feature vector has shape {np.shape(vector)}, expected {self.width} numbers")
        parts = np.split(np.asarray(vector), np.cumsum([column.width for column in self.columns])[:-1])
        return {column.name: column.decode(part) for column, part in zip(self.columns, parts, strict=True)}

    def to_json(self) -> list[dict[str, Any]]:
        """Returns an object per column, without the fields that have their default."""
        return [
            {"name": column.name, "kind": column.kind}
            | ({"categories": list(column.categories)} if column.categories else {})
            | ({"fill": column.fill} if column.fill is not None else {})
            | ({"flag": True} if column.flag else {})
            for column in self.columns
        ]

    @classmethod
    def from_json(cls, content: Sequence[Mapping[str, Any]]) -> FeatureSchema:
        """The inverse of `to_json`. Raises DataError for unknown or missing fields and wrong types."""
        _require(isinstance(content, list), "a feature schema is not a list of columns")
        columns = []
        for number, fields in enumerate(content):
            _require(isinstance(fields, dict), f"feature column {number} is not an object")
            unknown = fields.keys() - _JSON_TYPES.keys()
            _require(not unknown, f"feature column {number} has the unknown field {min(unknown, default='')!a}")
            _require({"name", "kind"} <= fields.keys(), f"feature column {number} lacks its name or its kind")
            for name, value in fields.items():
                valid = isinstance(value, _JSON_TYPES[name]) and (name == "flag" or not isinstance(value, bool))
                problem = f"feature column {number}: {name} is {type(value).__name__}"
                _require(valid, f"{problem}, expected {type_names(_JSON_TYPES[name])}")
            columns.append(FeatureColumn(**{**fields, "categories": tuple(fields.get("categories", ()))}))
        return cls(tuple(columns))

    @cached_property
    def _by_name(self) -> dict[str, FeatureColumn]:
        return {column.name: column for column in self.columns}

    @cached_property
    def _starts(self) -> dict[str, int]:
        """The first position of each column."""
        starts = np.cumsum([0] + [column.width for column in self.columns[:-1]]).tolist()
        return dict(zip(self._by_name, starts, strict=True))

    @cached_property
    def _required(self) -> list[FeatureColumn]:
        return [column for column in self.columns if column.fill is None]

    @cached_property
    def _filled(self) -> list[float]:
        """The positions of a node whose values are all missing."""
        parts = [[0.0] * column.width if column.fill is None else column.encode(None) for column in self.columns]
        return [number for part in parts for number in part]

    @property
    def _first_names(self) -> str:
        return ", ".join([column.name for column in self.columns[:MAX_CATEGORIES_SHOWN]])


def type_names(types: type | tuple[type, ...]) -> str:
    """The names of types for an error message: `int or str`."""
    return " or ".join(kind.__name__ for kind in (types if isinstance(types, tuple) else (types,)))


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise DataError(reason)


def _parse_date(value: Any) -> float | None:
    """Returns the days since 1970-01-01 of an ISO date, or None."""
    try:
        return _days(date.fromisoformat(value))
    except (TypeError, ValueError):
        return None


def _days(day: date) -> float:
    return float((day - EPOCH).days)
