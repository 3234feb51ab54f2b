"""Turns a column into features: finds its kind, fills in missing values on request, and encodes it as its schema says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from model_store import DataError, FeatureColumn, FeatureValueError
from model_store.feature_schema import MAX_NUMBER, Kind
from training.data.tables import cells
from training.data.tables.reading import Reading
from training.data.tables.table import Column, to_numpy

MAX_CATEGORIES = 50
"""More different texts are taken for free text, unless --category-columns names the column."""


def describe_column(column: Column, reading: Reading, known: FeatureColumn | None = None) -> FeatureColumn:
    """The schema of a column, from its cells.

    Args:
        known: the schema of the column in an earlier version; its kind is kept, and its categories come first.
    """
    missing = column.missing()
    if missing.all():
        raise column.error(f"has no values: {_leave_out(column)}")
    kind = known.kind if known else _kind(column, missing, reading)
    feature = FeatureColumn(column.name, kind, _categories(column, missing, reading, known) if kind == "category" else ())
    if reading.impute is None:
        return feature
    fill = _fill(_encode(column, missing, feature, reading)[~missing], feature, reading)
    return replace(feature, fill=fill, flag=reading.impute == "flag" and bool(missing.any()))


def encode_column(column: Column, feature: FeatureColumn, reading: Reading) -> NDArray[np.float64]:
    """The (N, width) features of a column: bitwise equal to those of `feature.encode`."""
    missing = column.missing()
    if missing.any() and feature.fill is None:
        row, count = int(missing.argmax()), int(missing.sum())
        problem = f"{column.cell(row)} is a missing value ({count:,} of {len(column):,} cells of the column)"
        raise column.error(f"{problem}: --impute mean, zero or flag fills them in, or {_leave_out(column)}", row)
    return _encode(column, missing, feature, reading)


def _encode(column: Column, missing: NDArray[np.bool_], feature: FeatureColumn, reading: Reading) -> NDArray[np.float64]:
    if feature.kind != "number":
        return _encode_values(column, missing, feature)
    encoded = np.zeros((len(column), feature.width))
    encoded[:, 0] = _numbers(column, missing, reading)
    if feature.fill is not None:
        encoded[missing] = feature.encode(None)
    return encoded


def _kind(column: Column, missing: NDArray[np.bool_], reading: Reading) -> Kind:
    types, kind = pa.types, column.values.type
    if column.name in reading.category_columns:
        return "category"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) or types.is_floating(kind):
        return "number"
    if types.is_date(kind):
        return _checked_date(column, missing, reading)
    if not column.is_text:
        raise column.error(f"holds {kind}, expected numbers, text, booleans or dates: {_leave_out(column)}")
    return _text_kind(column, missing, reading)


def _text_kind(column: Column, missing: NDArray[np.bool_], reading: Reading) -> Kind:
    texts = column.values.filter(pa.array(~missing))
    if _as_numbers(texts, reading) is not None:
        return "number"
    if set(pc.unique(pc.utf8_lower(texts)).to_pylist()) <= cells.BOOLEANS.keys():
        return "boolean"
    if cells.share_of(texts, cells.ISO_DATE) > 0.5:
        return _checked_date(column, missing, reading)
    if cells.share_of(texts, cells.DECIMAL_COMMA) > 0.5:
        row = int(np.argmin(missing))
        problem = f"{column.cell(row)} has a decimal comma: --decimal-comma reads it as a number"
        raise column.error(problem, row)
    if cells.share_of(texts, cells.OTHER_DATE) > 0.5:
        row = int(np.argmin(missing))
        problem = (
            f"{column.cell(row)} looks like a date, expected dates as 2024-01-31: convert them, or {_leave_out(column)}"
        )
        raise column.error(problem, row)
    return "number" if cells.share_of(texts, cells.NUMBER) > 0.5 else "category"


def _checked_date(column: Column, missing: NDArray[np.bool_], reading: Reading) -> Kind:
    if reading.dates is None:
        row = int(np.argmin(missing))
        choices = f"--dates days turns dates into days since 1970-01-01, or {_leave_out(column)}"
        raise column.error(f"{column.cell(row)} is a date, expected a number: {choices}", row)
    return "date"


def _categories(
    column: Column, missing: NDArray[np.bool_], reading: Reading, known: FeatureColumn | None
) -> tuple[str, ...]:
    """The known categories, then new ones. Refuses free text: values that hardly repeat, or too many of them."""
    texts = pc.unique(column.texts().filter(pa.array(~missing))).to_pylist()
    before = known.categories if known else ()
    categories = before + tuple(sorted(set(texts) - set(before), key=cells.natural_order))
    limit = MAX_CATEGORIES if known else min(MAX_CATEGORIES, max(2, len(column) // 2))
    if len(categories) > limit and column.name not in reading.category_columns:
        raise column.error(
            f"holds text with {len(categories):,} different values in {len(column):,} rows, expected numbers or at most "
            f"{MAX_CATEGORIES} categories that repeat: {_leave_out(column)}, or --category-columns {column.name} makes "
            "a feature of every value"
        )
    return categories


def _fill(present: NDArray[np.float64], feature: FeatureColumn, reading: Reading) -> float | str:
    if feature.kind == "category":
        return feature.categories[int(present.sum(axis=0).argmax())]
    if reading.impute == "zero" and feature.kind != "date":
        return 0.0
    mean = float(present.mean())
    return mean if feature.kind == "number" else float(round(mean))


def _as_numbers(texts: Any, reading: Reading) -> Any:
    """The numbers that the texts are, as a pyarrow array; None if one of them is not a number."""
    try:
        return (pc.replace_substring(texts, ",", ".") if reading.decimal_comma else texts).cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _numbers(column: Column, missing: NDArray[np.bool_], reading: Reading) -> NDArray[np.float64]:
    values = pc.if_else(pa.array(missing), None, column.values)
    numbers = _as_numbers(values, reading) if column.is_text else _cast(column, values)
    if numbers is None:
        matches = [text is None or cells.number(text) is not None for text in values.to_pylist()]
        row = matches.index(False)
        wrong = matches.count(False)
        count = f" ({wrong:,} of {len(column):,} cells of the column)"
        choices = f"correct it, or {_leave_out(column)}, or --category-columns {column.name} makes categories of its cells"
        raise column.error(f"{column.cell(row)} is not a number{count}: {choices}", row)
    result: NDArray[np.float64] = to_numpy(pc.fill_null(numbers, 0.0))
    if len(wrong_rows := np.flatnonzero(~(np.abs(result) <= MAX_NUMBER))):
        row = int(wrong_rows[0])
        raise column.error(f"{column.cell(row)} is not a number between -3.4e38 and 3.4e38", row)
    return result


def _cast(column: Column, values: Any) -> Any:
    try:
        return values.cast(pa.float64(), safe=False)
    except pa.ArrowException:
        raise column.error(f"holds {values.type}, expected numbers as the live version's data has") from None


def _encode_values(column: Column, missing: NDArray[np.bool_], feature: FeatureColumn) -> NDArray[np.float64]:
    """Encodes every different value once."""
    encoded = pc.if_else(pa.array(missing), None, column.texts()).dictionary_encode()
    different = encoded.dictionary.to_pylist()
    places = to_numpy(pc.fill_null(encoded.indices, len(different)))
    rows: NDArray[np.float64] = np.zeros((len(different) + 1, feature.width))
    for place, text in enumerate(different):
        try:
            rows[place] = feature.encode(_value(feature.kind, text))
        except FeatureValueError as error:
            raise _value_error(column, int(np.argmax(places == place)), error, feature.kind) from error
    if feature.fill is not None:
        rows[-1] = feature.encode(None)
    return rows[places.astype(np.int64)]


def _value(kind: Kind, text: str) -> Any:
    if kind == "boolean":
        return cells.BOOLEANS.get(text.lower(), text)
    return text[:10] if kind == "date" and cells.ISO_DATE.fullmatch(text) else text


def _value_error(column: Column, row: int, error: FeatureValueError, kind: Kind) -> DataError:
    problem = str(error).removeprefix(f"feature {column.name!r} is ")
    # Only the schema of a published model lacks a category of its column.
    return column.error(f"{problem}; a new category needs a new training" if kind == "category" else problem, row)


def _leave_out(column: Column) -> str:
    return f"--ignore-columns {column.name} leaves the column out"
