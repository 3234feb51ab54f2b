"""A process that uses a store: python -m tests.model_store.versions.crowd reader|publisher|pruner STORE SECONDS.

The weights and the manifest of a version carry the same mark, so that a mixture of two versions is detected. The process
prints "ready", waits for a line on standard input, repeats its work, and prints the number of repetitions and of marks that
it saw. Anything unexpected ends it with a traceback.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from model_store import Store


def read(store: Store) -> float:
    with store.model("demo").open() as snapshot:
        mark: float = snapshot.manifest.training["mark"]
        assert (snapshot.weights["output.bias"] == mark).all()
        snapshot.probes.replay(snapshot, 1e-4)
    return mark


def publish(store: Store, turn: int) -> None:
    from tests.model_store.samples import small_contents  # loads torch, which readers do not need

    mark = os.getpid() % 1000 + turn / 1024
    contents = small_contents(turn, training={"mark": mark})
    contents.weights["output.bias"][:] = mark
    store.publish("demo", contents, onnx=False, activate=True)


def main(role: str, root: str, seconds: str) -> None:
    store, turn, marks = Store(Path(root)), 0, set[float]()
    if role == "publisher":
        import torch

        torch.set_num_threads(1)
        from tests.model_store import samples  # noqa: F401  # what publishing needs
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    while turn < 2 or time.monotonic() < end:
        if role == "reader":
            marks.add(read(store))
        elif role == "publisher":
            publish(store, turn)
        else:
            store.model("demo").prune(keep=2)
            time.sleep(0.05)
        turn += 1
    sys.stdout.write(f"{turn} {len(marks)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
