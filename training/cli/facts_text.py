"""The facts about data as text for a terminal, at most 80 columns wide."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

import numpy as np

from model_store.cli.listing import format_table
from training.cli.options import Options
from training.data.facts.columns import ColumnFacts, ColumnKind, Suspicion
from training.data.facts.data_facts import MAX_COLUMNS_LISTED, ClassFacts, DataFacts, FeatureFacts, LabelFacts
from training.data.facts.findings import Finding, findings
from training.data.facts.structure import StructureFacts
from training.data.labelled import LabelledGraph
from training.fit.feature_scaling import ScalingChoice

WIDTH = 80
LABEL_WIDTH = 12
MAX_CLASSES_LISTED = 12
MAX_NAME = 30
MAX_PLAIN = 1e15
"""Larger whole numbers are printed with an exponent."""
COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m"}
REMARKS: dict[Suspicion, str] = {"index": "an index?", "id": "an id?", "label": "the label?"}
KINDS: dict[ColumnKind, tuple[str, str]] = {
    "constant": ("constant", "constant"),
    "0/1": ("of 0 and 1", "of 0 and 1"),
    "whole number": ("whole number", "whole numbers"),
    "number": ("number", "numbers"),
    "category": ("category", "categories"),
    "date": ("date", "dates"),
}
TASKS = {"multiclass": "classes", "multilabel": "several labels per node", "regression": "values"}
SCALINGS = {"none": "used as they are", "row": "every row divided by its sum", "standard": "standardised"}


def facts_text(facts: DataFacts, warnings: Sequence[Finding], *, tables: bool = True) -> str:
    """All facts, or without `tables` the part that is printed before a training."""
    sections = [_summary(facts)]
    if tables:
        sections += [_column_table(facts.features), _class_table(facts.labels)]
    sections.append("\n".join(map(_finding_text, warnings)))
    return "\n\n".join(section for section in sections if section)


def print_facts(options: Options, data: LabelledGraph, scaling: ScalingChoice) -> None:
    """Prints the facts before a training to standard error, unless --json or --quiet is given."""
    if not options.json and not options.quiet:
        facts = DataFacts.of(data, scaling.transform, scaling.reason)
        sys.stderr.write(facts_text(facts, findings(facts), tables=False) + "\n\n")


def styled(kind: str, text: str) -> str:
    """Coloured if standard output and standard error are terminals."""
    return f"{COLOURS[kind]}{text}\x1b[0m" if sys.stdout.isatty() and sys.stderr.isatty() else text


def _summary(facts: DataFacts) -> str:
    structure, labels = facts.structure, facts.labels
    lines = {"data": facts.name, "nodes": _nodes(structure), "edges": _edges(structure), "features": _features(facts)}
    if labels is not None:
        share = labels.labelled / structure.nodes
        counted = f"{len(labels.classes):,} " if labels.classes else ""
        lines["labels"] = f"{labels.labelled:,} nodes ({_percent(share)}); {counted}{TASKS[labels.task]}"
        lines["split"] = ", ".join(f"{count:,} {part}" for part, count in labels.parts.items())
        lines["split"] += f"; drawn: {labels.drawn}" if labels.drawn else "; given with the data"
        lines["homophily"] = _homophily(labels)
        lines["task"] = f"{labels.task}; the best epoch is chosen by validation {labels.metric}"
    indent = " " * LABEL_WIDTH
    wrapped = (
        textwrap.fill(text, WIDTH, initial_indent=f"{label:<{LABEL_WIDTH}}", subsequent_indent=indent)
        for label, text in lines.items()
        if text
    )
    return "\n".join(wrapped)


def _nodes(structure: StructureFacts) -> str:
    parts = [f"{structure.nodes:,}", f"{structure.isolated:,} without edges"]
    if structure.components > 1:
        largest = f"the largest of {structure.largest_component:,} nodes"
        parts.append(f"{structure.components:,} connected components, {largest}")
    return "; ".join(parts)


def _edges(structure: StructureFacts) -> str:
    used, counts = f"{structure.edges:,} undirected; largest degree {structure.largest_degree:,}", structure.given
    if counts is None:
        return used
    if counts.one_way == structure.edges and counts.one_way:
        direction = "each edge in one direction"
    elif counts.one_way:
        direction = f"{counts.one_way:,} edges in one direction only"
    else:
        direction = "each edge in both directions" if structure.edges else ""
    dropped = ((counts.repeated, "repeat"), (counts.self_loops, "self-loop"))
    parts = [direction, *(f"{count:,} {name}{'s' * (count != 1)} dropped" for count, name in dropped if count)]
    return f"{used}; from {counts.entries:,} entries: {', '.join(part for part in parts if part)}".removesuffix(": ")


def _features(facts: DataFacts) -> str:
    features = facts.features
    kinds = ", ".join(f"{count:,} {KINDS[kind][count != 1]}" for kind, count in features.kinds.items())
    parts = [kinds if len(features.kinds) == 1 else f"{len(features.columns):,}: {kinds}"]
    if features.sparse:
        parts.append(f"sparse, {_percent(features.non_zero)} of the values not zero")
    if features.empty_rows:
        parts.append(f"zeros only for {features.empty_rows:,} node{'s' * (features.empty_rows != 1)}")
    if facts.scaling:
        parts.append(SCALINGS[facts.scaling] + (f" ({facts.scaling_reason})" if facts.scaling_reason else ""))
    return "; ".join(parts)


def _homophily(labels: LabelFacts) -> str:
    if labels.homophily is None:
        return ""
    share, adjusted = _percent(labels.homophily.same_class), labels.homophily.adjusted
    return f"{share} of the edges join two nodes of one class; adjusted for chance {adjusted:.2f}"


def _column_table(features: FeatureFacts) -> str:
    columns: Sequence[ColumnFacts] = features.columns
    if len(columns) > MAX_COLUMNS_LISTED:
        columns = [column for column in columns if column.suspicion][:MAX_COLUMNS_LISTED]
    if not columns:
        return ""
    names = ["feature", "type", "from", "to", "missing", ""]
    rows = [[_cut(column.name), column.kind, *_range(column), _missing(column), _remark(column)] for column in columns]
    if not any(column.missing for column in columns):
        names.remove("missing")
        rows = [[*row[:-2], row[-1]] for row in rows]
    return _indented(format_table(names, rows))


def _missing(column: ColumnFacts) -> str:
    return _percent(column.missing) if column.missing else ""


def _range(column: ColumnFacts) -> tuple[str, str]:
    """The cells of the columns "from" and "to". A category column has its number of values as "to"."""
    if column.categories is not None:
        return "", f"{column.categories} value{'s' * (column.categories != 1)}"
    if column.kind == "date":
        # In days since 1970-01-01.
        low, high = (str(np.datetime64(int(days), "D")) for days in (column.low, column.high))
        return low, high
    digits = ".0f" if column.kind == "whole number" and max(abs(column.low), abs(column.high)) < MAX_PLAIN else "g"
    return f"{column.low:{digits}}", f"{column.high:{digits}}"


def _remark(column: ColumnFacts) -> str:
    return "" if column.suspicion is None else REMARKS[column.suspicion]


def _class_table(labels: LabelFacts | None) -> str:
    if labels is None or not labels.classes:
        return ""
    by_size = sorted(labels.classes, key=lambda facts: -facts.nodes)
    listed: Sequence[ClassFacts] = labels.classes
    more = ""
    if len(by_size) > MAX_CLASSES_LISTED:
        half = MAX_CLASSES_LISTED // 2
        listed = [*by_size[:half], *by_size[-half:]]
        more = f"\n  ... the {half} largest and the {half} smallest of {len(by_size):,} classes; --json lists all"
    rows = [[_cut(facts.name), f"{facts.nodes:,}", *(f"{n:,}" for n in facts.parts.values())] for facts in listed]
    return _indented(format_table(["class", "nodes", *labels.parts], rows)) + more


def _finding_text(finding: Finding) -> str:
    text = f"warning: {finding.text}. What to do: {finding.advice}."
    return styled("warning", textwrap.fill(text, WIDTH, subsequent_indent="  "))


def _indented(text: str) -> str:
    return textwrap.indent(text, "  ")


def _cut(name: str) -> str:
    return repr(name) if not name else name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."


def _percent(share: float) -> str:
    return f"{share:.0%}" if share == 0 or share >= 0.1 else f"{100 * share:.2g}%"
