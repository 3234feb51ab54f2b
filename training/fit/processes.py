"""The processes of a run, as torchrun starts them: who this process is, and what all of them must agree on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from model_store.versions.durable import make_folder
from sgformer import SgformerError
from sgformer.device import DeviceError, choose_device
from sgformer.full_graph.collectives import all_gather, broadcast, communication_device, world_size
from training.fit.heartbeat import Heartbeat

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, which may read slower disks."""
SHARED_SECONDS, SHARED_PAUSE = 90.0, 0.2
"""How long a network file system may take to show a new file to other machines: NFS caches folders for up to a minute."""


COLLECTIVE_ERRORS = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset")
"""Words in the errors of torch.distributed, which have no type of their own."""


class LostProcessError(SgformerError):
    """Another process of the run has ended, or cannot be reached."""


class ProcessesDisagreeError(SgformerError):
    """The processes of a run have different data, or different stores."""


@contextmanager
def process_group(wanted: str = "cpu") -> Iterator[str]:
    """Yields the device of this process (`choose_device`). Joins the processes that torchrun has started, by the variables
    that it sets; nothing for a single process.
    """
    device = choose_device(wanted)
    with _enough_memory():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            yield device
            return
        with _joined(torch.device(device)):
            yield device


@contextmanager
def _enough_memory() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        advice = "train with a smaller --batch-nodes, or with --device cpu"
        raise DeviceError(f"the memory of the GPU does not suffice ({str(error).splitlines()[0]}): {advice}") from error


@contextmanager
def _joined(device: torch.device) -> Iterator[None]:
    gpu = None if device.type == "cpu" else device
    if gpu is not None:
        torch.cuda.set_device(gpu)  # nccl and `communication_device` use the current GPU
    dist.init_process_group("gloo" if gpu is None else "nccl", timeout=TIMEOUT, device_id=gpu)
    heartbeat = Heartbeat(dist.get_rank(), dist.get_world_size())
    is_done = False
    try:
        yield
        is_done = True
    except RuntimeError as error:
        if not any(word in str(error) for word in COLLECTIVE_ERRORS):
            raise
        reason = str(error).splitlines()[0]
        raise LostProcessError(f"the connection to another process of the run was lost: {reason}") from error
    finally:
        heartbeat.stop(is_done)
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def any_process(flag: bool) -> bool:
    """True in all processes if it is true in one of them."""
    return flag if world_size() == 1 else any(bool(part.item()) for part in all_gather(torch.tensor([int(flag)])))


def require_same(digest: str, what: str) -> None:
    """Raises ProcessesDisagreeError unless all processes have the same hash."""
    if world_size() == 1:
        return
    parts = all_gather(torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8))
    if different := [number for number, part in enumerate(parts) if not torch.equal(part, parts[0])]:
        raise ProcessesDisagreeError(
            f"rank {different[0]} has read other {what} than rank 0: all processes need the same files"
        )


def require_shared(folder: Path) -> None:
    """Raises ProcessesDisagreeError unless all processes find a file that rank 0 makes in its folder.

    A run on several machines whose store is not shared would otherwise fail when it publishes, after the training.
    """
    if world_size() == 1:
        return
    if rank() > 0:
        missing = _ranks_without(None)
    else:
        make_folder(folder)
        with NamedTemporaryFile(dir=folder.resolve(), prefix=".shared-") as file:
            missing = _ranks_without(file.name)
    if missing:
        raise ProcessesDisagreeError(
            f"rank {missing[0]} does not see the store of rank 0, {broadcast(str(folder.resolve()))}: "
            "the store must be on a file system that all machines share, under the same path"
        )


def _ranks_without(path: str | None) -> list[int]:
    """The processes for which the file of rank 0, whose path only rank 0 knows, does not appear."""
    is_found = _appears(Path(broadcast(path)))
    return [number for number, found in enumerate(all_gather(torch.tensor([int(is_found)]))) if not found]


def _appears(path: Path) -> bool:
    end = time.monotonic() + SHARED_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(SHARED_PAUSE)
    return True


def seed_epoch(seed: int, epoch: int) -> None:
    """Seeds torch for the dropout of an epoch: different in every process, and the same if the run is resumed."""
    torch.manual_seed((seed * 1_000_003 + epoch) * 4096 + rank())


def broadcast_buffers(model: torch.nn.Module) -> None:
    """Gives all processes the running statistics of rank 0: each has updated its own with its own batches."""
    for buffer in model.buffers():
        placed = buffer.to(communication_device())
        dist.broadcast(placed, src=0)
        buffer.copy_(placed)


def share_of(items: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The items of this process: every process gets equally many; the items are repeated from the first on if necessary.

    As torch's DistributedSampler does.
    """
    steps = -(-len(items) // world_size())
    return [items[place % len(items)] for place in range(rank(), steps * world_size(), world_size())]
