"""Decides whether a published version goes live, and removes versions that are no longer needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from model_store import LiveVersionChanged, ModelVersions, Snapshot, StoreError
from model_store.run_contract import ActivatedEvent, PublishedEvent, VerdictEvent
from model_store.run_settings import Activation
from training.cli.events import EventWriter
from training.release.gate import Verdict

MAX_COMPARISONS = 5
"""A comparison is repeated if another version went live during it; this is the largest number of comparisons."""


def deliver(
    versions: ModelVersions,
    version: int,
    mode: Activation,
    judge: Callable[[Snapshot | None], Verdict],
    events: EventWriter,
    keep: int | None = None,
    discard_changes: bool = False,
) -> dict[str, Any]:
    """Reports a published version and activates it if `mode` says so. Returns `live`, and `verdict` if there is one.

    Args:
        judge: compares the new version with the live one.
        discard_changes: as for `ModelVersions.activate`.
        keep: remove all but the newest `keep` versions, the live version and the roll-back target. Earlier versions that
            `if_better` did not activate are removed in any case.

    Raises:
        StoreError: the probes of the new version fail, or the live version cannot be read.
        RunAbandoned: the service has abandoned the run.
    """
    manifest = versions.manifest(version)
    events.write(PublishedEvent(version=version, snapshot=manifest.snapshot, scores=dict(manifest.scores)))
    _remove_old_versions(versions, version, keep)
    if mode == "never":
        return {"live": False}
    if mode == "always":
        versions.activate(version, before_activation=events.check_fence, discard_changes=discard_changes)
        events.write(ActivatedEvent(version=version))
        return {"live": True}
    return _activate_if_better(versions, version, judge, events, discard_changes)


def _activate_if_better(
    versions: ModelVersions,
    version: int,
    judge: Callable[[Snapshot | None], Verdict],
    events: EventWriter,
    discard_changes: bool,
) -> dict[str, Any]:
    # Sizes only: this run has just written the files, and `activate` checks every hash.
    with versions.open(version, verify="sizes") as new:
        probes = new.replay()
    for _ in range(MAX_COMPARISONS):
        with nullcontext(None) if versions.live() is None else versions.open() as live:
            live_version = None if live is None else int(live.folder.name)
            verdict = asdict(judge(live)) | {"probes": probes}
        events.write(VerdictEvent(**verdict))
        if not verdict["better"]:
            return {"live": False, "verdict": verdict}
        try:
            versions.activate(
                version,
                expected_live=live_version,
                before_activation=events.check_fence,
                discard_changes=discard_changes,
            )
        except LiveVersionChanged:
            continue  # another version has gone live since, and may be better than this one
        events.write(ActivatedEvent(version=version))
        return {"live": True, "verdict": verdict}
    raise LiveVersionChanged(
        f"the live version of {versions.name} changed during each of {MAX_COMPARISONS} comparisons; "
        f"version {version} is published but not live"
    )


def _remove_old_versions(versions: ModelVersions, version: int, keep: int | None) -> None:
    """A failure here does not fail the run, because its version is already published."""
    try:
        not_better = _earlier_not_better(versions, version)
        removed = versions.prune(1, only=not_better).removed if not_better else []
        removed += [] if keep is None else versions.prune(keep).removed
    except (StoreError, OSError) as error:
        sys.stderr.write(f"could not remove old versions of {versions.name}: {error}; the next training tries again\n")
    else:
        if removed:
            sys.stderr.write(f"removed old versions of {versions.name}: {', '.join(map(str, sorted(removed)))}\n")


def _earlier_not_better(versions: ModelVersions, version: int) -> list[int]:
    """Returns the earlier versions that were published with `--activate if_better` and were never live.

    Such a version stays in the store until the next run, so that an operator can inspect or activate it.
    """
    activated = {event.version for event in versions.history().entries}
    earlier = [number for number in versions.versions() if number < version and number not in activated]
    return [number for number in earlier if versions.manifest(number).training.get("activate") == "if_better"]
