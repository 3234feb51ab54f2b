"""Finds features that determine the label alone: the label itself, a code of it, or something known only after it.

A column determines classes if every value of it has one class, or every class one range of values; in bags of words, if
exactly the nodes of one class have a nonzero value. Chance is excluded: of the columns of the data, fewer than one in a
thousand would do so if the labels were shuffled. A sample of the labelled nodes excludes nearly all columns.
"""

from __future__ import annotations

from math import lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE_NODES = 1000
LOG_MAX_CHANCE = log(1e-3)
MIN_CORRELATION = 0.99999
BLOCK_COLUMNS = 4096


def find_leaks(matrix: Any, labels: NDArray[Any]) -> list[int]:
    """The columns of a dense or scipy CSR matrix that determine the labels.

    Args:
        labels: classes (N,) with -1 for none; or floats (N,) or (N, T) with NaN for none, of which columns of 0 and 1 are
            classes and the others values.
    """
    leaks: set[int] = set()
    for target in labels.reshape(len(labels), -1).T:
        nodes = np.flatnonzero(target >= 0) if target.dtype.kind == "i" else np.flatnonzero(~np.isnan(target))
        is_class = target.dtype.kind == "i" or np.isin(target[nodes], (0, 1)).all()
        sample = nodes[np.unique(np.linspace(0, len(nodes) - 1, min(len(nodes), SAMPLE_NODES)).astype(int))]
        columns = np.arange(matrix.shape[1])
        for chosen in (sample, nodes):
            if len(columns):
                answers = target[chosen].astype(np.int64) if is_class else target[chosen].astype(np.float64)
                columns = columns[_determining(matrix, chosen, columns, answers)]
        leaks |= set(columns.tolist())
    return sorted(leaks)


def _determining(
    matrix: Any, rows: NDArray[np.int64], columns: NDArray[np.int64], answers: NDArray[Any]
) -> NDArray[np.bool_]:
    """For each of the columns, whether it determines the answers of these rows."""
    width, is_sparse = matrix.shape[1], hasattr(matrix, "toarray")
    matrix = matrix[rows] if is_sparse else matrix
    is_leak = np.zeros(len(columns), dtype=bool)
    if len(answers) < 2 or answers.min() == answers.max():
        return is_leak
    for start in range(0, len(columns), BLOCK_COLUMNS):
        block = slice(start, start + BLOCK_COLUMNS)
        # Of dense features, which may exceed memory, only the columns in question are read.
        values = matrix[:, columns[block]].toarray() if is_sparse else matrix[np.ix_(rows, columns[block])]
        if answers.dtype.kind == "f":
            is_leak[block] = np.abs(_correlations(values.astype(np.float64), answers)) > MIN_CORRELATION
        else:
            is_leak[block] = _separates(values, answers, width) | _marks_one_class(values, answers, width)
    return is_leak


def _correlations(values: NDArray[np.float64], answers: NDArray[np.float64]) -> NDArray[np.float64]:
    values, answers = values - values.mean(axis=0), answers - answers.mean()
    lengths = np.linalg.norm(values, axis=0) * np.linalg.norm(answers)
    return np.asarray(np.divide(answers @ values, lengths, out=np.zeros(values.shape[1]), where=lengths > 0))


def _separates(values: NDArray[Any], answers: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    """Every value has one class, or every class one range of values."""
    counts = np.unique(answers, return_counts=True)[1]
    log_arrangements = _log_arrangements(counts) - log(width)
    by_class = np.argsort(answers, kind="stable")  # equal values are then in the order of their classes
    values, answers = values[by_class], answers[by_class]
    # A cheap test excludes most columns: if there are more zeros than nodes in the largest class, 0 has several classes.
    maybe = np.flatnonzero((values == 0).sum(axis=0) <= counts.max())
    order = np.argsort(values[:, maybe], axis=0, kind="stable")
    ordered, classes = np.take_along_axis(values[:, maybe], order, axis=0), answers[order]
    new_value, new_class = ordered[1:] != ordered[:-1], classes[1:] != classes[:-1]
    consistent = ~(new_class & ~new_value).any(axis=0)
    log_ranges = lgamma(len(counts) + 1)
    log_codes = (new_value.sum(axis=0) + 1) * log(len(counts))
    ranges = (new_class.sum(axis=0) + 1 == len(counts)) & (log_ranges - log_arrangements < LOG_MAX_CHANCE)
    is_leak = np.zeros(values.shape[1], dtype=bool)
    is_leak[maybe] = consistent & (ranges | (log_codes - log_arrangements < LOG_MAX_CHANCE))
    return is_leak


def _marks_one_class(values: NDArray[Any], answers: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    """Nonzero for all nodes of one class, and zero for all other nodes."""
    classes, counts = np.unique(answers, return_counts=True)
    present, is_leak = values != 0, np.zeros(values.shape[1], dtype=bool)
    totals = present.sum(axis=0)
    for label, count in zip(classes, counts, strict=True):
        if log(width * len(classes)) - _log_arrangements(np.array([count, len(answers) - count])) < LOG_MAX_CHANCE:
            candidates = np.flatnonzero(totals == count)
            is_leak[candidates[present[np.ix_(answers == label, candidates)].all(axis=0)]] = True
    return is_leak


def _log_arrangements(counts: NDArray[np.int64]) -> float:
    """The logarithm of the number of ways to give classes of these sizes to the nodes."""
    return lgamma(counts.sum() + 1) - sum(lgamma(count + 1) for count in counts)
