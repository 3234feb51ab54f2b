"""Compaction: a job that publishes the live weights over the graph as it is now, on request or when much has changed.

Without it, every answer reads the changes in addition to the snapshot, and every worker replays them when it starts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from service.jobs.job import Job
from service.jobs.ledger import JobConflict
from service.jobs.submission import Submission
from service.settings import Settings

LOG = logging.getLogger("service.jobs")
COMPACTION = Submission(data="live", refresh=True, activate="if_better")
"""`if_better`: the new version goes live unless the live weights have changed in the meantime."""
CHECK_SECONDS, RETRY_SECONDS = 5.0, 3600
MIN_CHANGES, MAX_SHARE = 1000, 0.25
"""A graph is compacted when this share of its nodes has changed, and at least MIN_CHANGES; or when SGF_COMPACT_CHANGES nodes
have changed, if that comes first."""


class Overlay(NamedTuple):
    """How much of the live graph differs from its snapshot."""

    model: str
    snapshot: str
    changed: int
    """The larger of two numbers: nodes whose edges differ, and nodes whose features differ."""
    nodes: int


class AutomaticCompaction:
    """Submits compactions. The leader calls `step` often."""

    def __init__(
        self,
        settings: Settings,
        submit: Callable[[Submission, str, str | None], Job],
        overlay: Callable[[], Overlay | None],
    ) -> None:
        """`overlay` returns None if the served graph cannot be compacted."""
        can_run = settings.jobs_in_redis or find_spec("torch") is not None
        self._limit = settings.compact_changes if can_run else 0
        self._submit, self._overlay, self._check_at = submit, overlay, 0.0

    def step(self) -> None:
        if not self._limit or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_SECONDS
        overlay = self._overlay()
        if overlay is None or overlay.changed < min(self._limit, max(MIN_CHANGES, MAX_SHARE * overlay.nodes)):
            return
        # The idempotency key allows one job per snapshot and hour: a compaction that fails is tried again in the next hour.
        key = f"compaction-{overlay.snapshot}-{time.time() // RETRY_SECONDS:.0f}"
        try:
            job = self._submit(COMPACTION, overlay.model, key)
        except JobConflict:  # the model has a job already, which may be a compaction
            return
        if job.active:
            LOG.info("job %s compacts the graph of %s: %d nodes have changed", job.id, job.model, overlay.changed)
