"""Shadow verification: one in SGF_SHADOW_EVERY answers is computed again in another way, in a process of low priority.

A check never delays an answer. Only one check runs at a time. A due answer is skipped while a check runs, and while
all checks together have taken more than 1 % of the CPU time of this worker.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.served_model import ServedModel
from service.monitoring.full_precision import FullPrecision
from service.predict.compute_process import ComputeProcess
from service.predict.results import BothResults, NodeResults
from service.predict.rows import BothRows, KnownRows, NewRows, Rows
from service.settings import Settings
from service.telemetry.metrics import Metrics
from sgformer import AttentionSums, NeighborhoodTooLarge, NewNodes
from sgformer.arrays.operations import Indices

LOG = logging.getLogger("service.monitoring.shadow")
MAX_ENTRIES = 100_000
"""Most adjacency entries of a neighbourhood that is checked: 50 MB for 64 hidden units."""
MAX_JOINT = 64
"""Most new nodes of a joint request that is checked: all of them are computed together."""
MAX_SHARE = 0.0065
"""Largest share of the CPU time of this worker for the computation of all checks. Sending questions to the process and
reading its results take half as much again, so that checks take 1 % in all. Opening a version does not count."""
MIN_SCALE = 1e-6


@dataclass(frozen=True, eq=False)
class CheckResult:
    error: float
    """The largest difference: of a logit, relative to the largest logit of the probes; or of a sum, relative to the sum."""
    seconds: float
    """CPU time."""
    skipped: str | None = None
    """Why there was no check."""


@dataclass(frozen=True, eq=False)
class CheckedAnswer:
    """An answer of this worker, which the monitoring process computes again (`ComputeProcess` calls `compute`)."""

    rows: Indices
    """One row of the graph; empty if the answer is about new nodes."""
    new: NewNodes | None
    """The new nodes of one scenario; None if the answer is about a row."""
    logits: NDArray[np.float32]
    sums: AttentionSums
    """The sums of this worker. In a large graph they have little effect on a logit, so they are compared too."""

    @classmethod
    def of(cls, model: ServedModel, rows: Rows, results: Any) -> CheckedAnswer | None:
        """The answer for a node chosen at random, with the joint nodes of a new node. None if it cannot be verified: it is
        not a prediction, not finite, frozen, a what-if, too large, or about an earlier state of the graph.
        """
        if isinstance(rows, BothRows) and isinstance(results, BothResults):
            rows, results = rows.new, results.new
        if not isinstance(rows, KnownRows | NewRows) or not isinstance(results, NodeResults):
            return None
        if results.exactness == "frozen" or not results.is_finite or results.sequence != model.sequence:
            return None
        node, sums = random.randrange(len(results.logits)), model.live.graph.sums  # noqa: S311  # not a secret
        if isinstance(rows, KnownRows):
            return cls(rows.rows[node : node + 1], None, results.logits[node : node + 1], sums)
        number = int(rows.new.scenarios[node])
        members = rows.new.scenarios == number
        if members.sum() > MAX_JOINT:
            return None
        return cls(np.arange(0), rows.new.scenario(number), results.logits[members], sums)

    @staticmethod
    def compute(model: ServedModel, batch: Sequence[CheckedAnswer]) -> list[CheckResult]:
        return [answer._check(model) for answer in batch]

    def _check(self, model: ServedModel) -> CheckResult:
        full_precision, start = model.derive(FullPrecision), time.process_time()
        if self.new is not None and not full_precision.largest_input(self.new) <= model.live.graph.max_input:
            # Features far beyond those of the graph: float32 loses digits, so a difference would prove nothing.
            return CheckResult(0.0, time.process_time() - start, "extreme")
        try:
            expected = full_precision.answers(self.rows, self.new, MAX_ENTRIES).logits
        except NeighborhoodTooLarge:
            return CheckResult(0.0, time.process_time() - start, "too_large")
        errors = [_relative(self.logits - expected, _scale(model, expected))]
        for name in ("key_value", "key", "query_square", "key_square"):
            reference = np.asarray(getattr(full_precision.sums, name))
            errors.append(_relative(getattr(self.sums, name) - reference, float(np.abs(reference).max())))
        if self.sums.count != full_precision.sums.count:
            errors.append(np.inf)
        return CheckResult(float(np.max(errors)), time.process_time() - start)


class Shadow:
    """Used by one event loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        process: ComputeProcess,
        lock: asyncio.Lock,
        start: Callable[[Coroutine[Any, Any, None]], Any],
    ) -> None:
        """`lock` is held while the process is used; `start` starts a task."""
        self._every, self._metrics, self._start = settings.shadow_every, metrics, start
        self._process, self._lock = process, lock
        self._answers_left = self._every
        self._seconds, self._largest = 0.0, 0.0
        self._version: str | None = None

    def observe(self, model: ServedModel, rows: Rows, results: Any) -> None:
        """Called for every answer."""
        self._answers_left -= 1
        if self._answers_left > 0 or not self._every:
            return
        if self._lock.locked():
            reason = "busy"
        elif self._seconds > MAX_SHARE * time.process_time():
            reason = "budget"
        elif (answer := CheckedAnswer.of(model, rows, results)) is None:
            return  # the next answer is tried instead
        else:
            reason = None
            self._start(self._verify(model.acquire(), answer))
        self._answers_left = self._every
        if reason is not None:
            self._metrics.shadow_skips.labels(reason).inc()

    async def _verify(self, model: ServedModel, answer: CheckedAnswer) -> None:
        try:
            async with self._lock:
                (result,) = await self._process.compute(model, [answer])
            if isinstance(result, Exception):
                raise result
        except Exception as error:  # of any kind: requests are not affected
            self._metrics.shadow_skips.labels("error").inc()
            LOG.warning("an answer could not be verified (%s: %s); the next one is tried later", type(error).__name__, error)
        else:
            self._seconds += result.seconds
            self._record(model, answer, result)
        finally:
            model.release()

    def _record(self, model: ServedModel, answer: CheckedAnswer, result: CheckResult) -> None:
        if result.skipped is not None:
            self._metrics.shadow_skips.labels(result.skipped).inc()
            return
        if self._version != model.id:
            self._version, self._largest = model.id, 0.0
        tolerance = model.snapshot.manifest.probe_tolerance
        is_right = result.error <= tolerance
        self._metrics.shadow_checks.labels("passed" if is_right else "failed").inc()
        self._largest = float(np.fmax(self._largest, np.inf if np.isnan(result.error) else result.error))
        self._metrics.shadow_error.set(self._largest)
        if not is_right:
            node = "a new node" if answer.new is not None else f"node {model.names(answer.rows)[0]!r}"
            message = (
                "an answer of version %d for %s is wrong by %.1e (tolerance %.1e): its states or sums are damaged or stale"
            )
            LOG.error(message, model.version, node, result.error, tolerance)


def _scale(model: ServedModel, logits: NDArray[Any]) -> float:
    """The scale of errors, as for probes: the largest logit. Near zero, a float32 sum of larger numbers has no correct
    digits, so a single logit is no scale.
    """
    expected = (probe.answers.logits for probe in model.snapshot.probes.probes)
    return max(float(np.abs(part).max()) for part in (logits, *expected))


def _relative(difference: NDArray[Any], scale: float) -> float:
    return float(np.abs(difference).max() / max(scale, MIN_SCALE))
