"""`python -m tests.training.stopping`: sgf-train, which stops at a stage of the run and waits for the test.

STOP_AT: epoch, summary or publishing; STOP_RANK: the process that stops, once. It makes the file STOP_FILE, and continues
when the file is removed. Lost processes are found after LOST_SECONDS.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_store.publish import shared_forward, writer
from training.__main__ import main
from training.fit import heartbeat, loop

FILE, STAGE = Path(os.environ.get("STOP_FILE", "")), os.environ.get("STOP_AT", "")


def stop() -> None:
    mark = FILE.with_suffix(".once")
    if os.environ["RANK"] == os.environ["STOP_RANK"] and not mark.exists():
        mark.touch()
        FILE.write_text(str(os.getpid()))
        while FILE.exists():
            time.sleep(0.05)


def stopping(function: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            stop()
        return function(*arguments, **options)

    return wrapped


if __name__ == "__main__":
    heartbeat.BEAT_SECONDS, heartbeat.LOST_SECONDS = 0.5, float(os.environ.get("LOST_SECONDS", "120"))
    if STAGE == "epoch":  # after the first epoch, whose checkpoint is written
        loop._Run._step = stopping(loop._Run._step, lambda run, *_: bool(run.history))  # type: ignore[method-assign]
    elif STAGE == "summary":
        shared_forward.summarize = stopping(shared_forward.summarize)
    elif STAGE == "publishing":
        writer.write_logits = stopping(writer.write_logits)
    sys.exit(main())
