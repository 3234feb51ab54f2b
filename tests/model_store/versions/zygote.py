"""Forks publishers to be killed. Only this process loads torch; its children start at once.

`python -m tests.model_store.versions.zygote STORE` starts a publisher for every line of standard input. It prints the
process id, and then "published N" or "activated N" for each completed step.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import torch

from model_store import Store
from model_store.publish.writer import write_snapshot
from tests.model_store.samples import publish, small_contents

assert write_snapshot
assert small_contents


def publish_for_ever(root: Path, output: int) -> None:
    store = Store(root)
    for seed in itertools.count(os.getpid()):
        version = publish(store, seed)
        os.write(output, f"published {version}\n".encode())
        store.model("demo").activate(version)
        os.write(output, f"activated {version}\n".encode())


def main() -> None:
    torch.set_num_threads(1)  # a thread pool does not survive a fork
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                publish_for_ever(Path(sys.argv[1]), sys.stdout.fileno())
            finally:
                os._exit(1)
        os.write(sys.stdout.fileno(), f"pid {child}\n".encode())
        os.waitpid(child, 0)
        os.write(sys.stdout.fileno(), b"dead\n")


if __name__ == "__main__":
    main()
