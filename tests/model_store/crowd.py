"""One of a crowd around a store: python -m tests.model_store.crowd reader|publisher|pruner STORE SECONDS.

Every version's weights, manifest and probes carry the same mark, so that a mixture of two versions shows. Prints how often
it did its work; anything unexpected ends it with a traceback.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from model_store import Store


def read(store: Store) -> None:
    with store.model("demo").open() as snapshot:
        mark = snapshot.manifest.training["mark"]
        assert (snapshot.weights["output.bias"] == mark).all()
        snapshot.probes.replay(snapshot, 1e-4)


def publish(store: Store, turn: int) -> None:
    from tests.model_store.samples import small_contents  # loads torch, which readers do without

    mark = os.getpid() % 1000 + turn / 1024
    contents = small_contents(turn, training={"mark": mark})
    contents.weights["output.bias"][:] = mark
    store.publish("demo", contents, onnx=False, activate=True)


def main(role: str, root: str, seconds: str) -> None:
    store, turn = Store(Path(root)), 0
    if role == "publisher":
        import torch

        torch.set_num_threads(1)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        if role == "reader":
            read(store)
        elif role == "publisher":
            publish(store, turn)
        else:
            store.model("demo").prune(keep=2)
            time.sleep(0.05)
        turn += 1
    sys.stdout.write(str(turn))


if __name__ == "__main__":
    main(*sys.argv[1:])
