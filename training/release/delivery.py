"""What becomes of a published version: it stays as it is, goes live, or goes live if the gate finds it better."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from model_store import LiveVersionChanged, ModelVersions, StoreError
from model_store.run_contract import ActivatedEvent, Activation, PublishedEvent, VerdictEvent
from training.cli.events import EventWriter
from training.release.gate import Champion, Verdict

Mode = Activation
MOST_CHAMPIONS = 5
"""How often another version may go live while we compare with the one before it."""


def deliver(
    versions: ModelVersions,
    version: int,
    mode: Mode,
    judged: Callable[[Champion | None], Verdict],
    events: EventWriter,
    keep: int | None = None,
) -> dict[str, Any]:
    """Reports a new version and activates it, or not; returns whether it is `live`, and the `verdict` where there is one.

    Args:
        keep: remove older versions but the newest `keep`; before the gate, because refused versions fill the disk too.

    Raises:
        StoreError: its probes fail, or the live version cannot be read.
        RunAbandoned: the fencing file of the run was removed.
    """
    manifest = versions.manifest(version)
    events.write(PublishedEvent(version=version, snapshot=manifest.snapshot, scores=dict(manifest.scores)))
    if keep is not None:
        _prune(versions, keep)
    if mode == "never":
        return {"live": False}
    if mode == "always":
        versions.activate(version, last_look=events.check_fence)
        events.write(ActivatedEvent(version=version))
        return {"live": True}
    for _ in range(MOST_CHAMPIONS):
        champion = Champion.live(versions)
        verdict = judged(champion).to_dict() | {"probes": versions.verify(version)}
        events.write(VerdictEvent(**verdict))
        if not verdict["better"]:
            return {"live": False, "verdict": verdict}
        try:
            versions.activate(
                version, instead_of=None if champion is None else champion.version, last_look=events.check_fence
            )
        except LiveVersionChanged:
            continue  # it was compared with a version that is gone; the one that is live now may be better
        events.write(ActivatedEvent(version=version))
        return {"live": True, "verdict": verdict}
    raise LiveVersionChanged(f"other versions of {versions.name} kept going live; version {version} is published, not live")


def _prune(versions: ModelVersions, keep: int) -> None:
    """What cannot be removed does not fail the run: its version is published."""
    try:
        removed = versions.prune(keep).removed
    except (StoreError, OSError) as error:
        sys.stderr.write(f"old versions of {versions.name} are not removed: {error}; the next retraining tries again\n")
    else:
        sys.stderr.write(f"removed old versions of {versions.name}: {', '.join(map(str, removed))}\n" if removed else "")
