"""Which column of a table means what: chosen by a flag, or detected by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow.compute as pc

from model_store import DataError, FeatureSchema
from model_store.suggestions import did_you_mean
from training.data.tables.reading import Reading
from training.data.tables.table import Column, Table, list_names, shorten

ID_NAMES = ("id", "node_id", "nodeid", "node", "name")
LABEL_NAMES = ("label", "class", "y", "target")
SPLIT_NAME = "split"
END_NAMES = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"))


def check_chosen_names(reading: Reading, tables: Iterable[Table]) -> None:
    """Raises DataError if a flag names a column that is in none of the tables."""
    columns = [name for table in tables for name in table.values]
    for flag, names in (("--ignore-columns", reading.ignore_columns), ("--category-columns", reading.category_columns)):
        for name in names:
            if name not in columns:
                similar = did_you_mean(name, columns, repr)
                raise DataError(f"{flag}: no table has a column {name!r}; there are {list_names(columns)}{similar}")


def id_name(table: Table, reading: Reading, read_ends: Callable[[], Column]) -> str:
    """The column of the ids.

    Args:
        read_ends: reads ids that edges name, for the message if the column of the ids is not known.
    """
    if reading.id_column:
        return table.find(reading.id_column, "--id-column")
    name = _first(table, ID_NAMES, reading.ignore_columns)
    if name is None:
        names = f"{', '.join(ID_NAMES[:-1])} or {ID_NAMES[-1]}"
        columns = [name for name in table.values if name not in reading.ignore_columns]
        end = next((text for text in read_ends().texts().to_pylist() if text), "")
        likely = next((name for name in columns if _may_be_ids(table.column(name), end)), None)
        choice = "--id-column chooses the ids"
        if likely:
            choice += f"; --id-column {likely}? It has {shorten(end)}, the first id in the table of edges"
        raise DataError(f"{table.file} has no column {names}; it has {table.names_text}: {choice}")
    return name


def _may_be_ids(column: Column, end: str) -> bool:
    """Whether all values are different, and `end` is one of them."""
    texts = column.texts()
    return bool(pc.count_distinct(texts).as_py() == len(texts) and pc.index(texts, end).as_py() >= 0)


def label_name(table: Table, reading: Reading, features: FeatureSchema | None) -> str | None:
    """The column of the labels; None if there is none.

    Args:
        features: of an earlier version, which are not labels.
    """
    if reading.label_column:
        return table.find(reading.label_column, "--label-column")
    known = [feature.name for feature in features.columns] if features else []
    taken = [*reading.feature_columns, *reading.ignore_columns, reading.id_column, *known]
    names = [name for candidate in LABEL_NAMES if (name := _first(table, (candidate,), taken))]
    if len(names) > 1:
        choice = f"--label-column {names[0]} makes {names[1]} a feature, unless --ignore-columns {names[1]} leaves it out"
        raise DataError(f"{table.file} has the columns {' and '.join(names)}, which may both be the labels: {choice}")
    return names[0] if names else _first(table, LABEL_NAMES, known)


def split_name(table: Table, reading: Reading) -> str | None:
    return _first(table, (SPLIT_NAME,), (*reading.feature_columns, *reading.ignore_columns))


def feature_names(table: Table, reading: Reading, others: set[str | None]) -> list[str]:
    """The columns that are features.

    Args:
        others: the columns of the id, the label and the split.
    """
    if reading.feature_columns:
        names = [table.find(name, "--feature-columns") for name in reading.feature_columns]
        if taken := [name for name in names if name in others]:
            raise DataError(f"{table.file}: --feature-columns has {taken[0]!r}, which is the id, the label or the split")
        return names
    names = [name for name in table.values if name not in others and name not in reading.ignore_columns]
    if unnamed := [name for name in names if name in table.unnamed]:
        raise DataError(
            f"{table.file} has a column without a name, here {unnamed[0]!r}, often the row numbers that pandas writes: "
            f"write the file with index=False, or --ignore-columns {unnamed[0]!r} leaves it out"
        )
    return names


def check_fixed_names(table: Table, names: list[str], schema: FeatureSchema) -> None:
    """Raises DataError if the columns of the features are not those of a published model."""
    known = [feature.name for feature in schema.columns]
    if absent := [name for name in known if name not in names]:
        similar = did_you_mean(absent[0], names, repr)
        raise DataError(
            f"{table.file} has no column {absent[0]!r}, which the model reads; it has {table.names_text}{similar}"
        )
    if new := [name for name in names if name not in known]:
        choice = f"--ignore-columns {','.join(new)} leaves it out"
        raise DataError(f"{table.file}: column {new[0]!r} is not one that the model reads: {choice}")


def end_names(table: Table, reading: Reading) -> tuple[str, str]:
    """The columns of the two ends of an edge. Raises DataError for a third column that the user does not ignore."""
    ignored = {*reading.ignore_columns, *table.unnamed}
    chosen = {
        end: table.find(name, flag) if name else None
        for end, name, flag in (
            ("source", reading.source_column, "--source-column"),
            ("target", reading.target_column, "--target-column"),
        )
    }
    source, target = chosen["source"], chosen["target"]
    if source is None and target is None:
        pairs = ((_first(table, (first,), ignored), _first(table, (second,), ignored)) for first, second in END_NAMES)
        source, target = next((pair for pair in pairs if None not in pair), (None, None))
    free = [name for name in table.values if name not in ignored and name not in (source, target)]
    source = source or (free.pop(0) if free else None)
    target = target or (free.pop(0) if free else None)
    if source is None or target is None or source == target:
        flags = "--source-column and --target-column choose them"
        raise DataError(f"{table.file} has the columns {table.names_text}, expected one for each end of an edge: {flags}")
    if others := [name for name in table.values if name not in (source, target, *reading.ignore_columns)]:
        raise DataError(
            f"{table.file} has more columns than {source} and {target} ({list_names(others)}), but edges cannot have "
            f"weights or features; leave the others out with --ignore-columns {','.join(others)}"
        )
    return source, target


def _first(table: Table, names: Iterable[str], taken: Iterable[str | None] = ()) -> str | None:
    """The first of the names that is a column, ignoring case."""
    columns = {column.lower(): column for column in table.values if column not in set(taken)}
    return next((columns[name] for name in names if name in columns), None)
