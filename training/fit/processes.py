"""The processes of a run, as torchrun starts them: who this process is, and what all of them must agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from sgformer import SgformerError
from sgformer.device import DeviceError, choose_device
from sgformer.full_graph.shard import all_gather, communication_device, world_size
from training.fit.heartbeat import Heartbeat

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, which may read slower disks."""


COLLECTIVE_ERRORS = ("gloo", "Gloo", "NCCL", "Connection closed", "Connection reset")
"""Words in the errors of torch.distributed, which have no type of their own."""


class LostProcessError(SgformerError):
    """Another process of the run has ended, or cannot be reached."""


class ProcessesDisagreeError(SgformerError):
    """The processes of a run have different data."""


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
    """The items of this process: every process gets equally many, the first ones again if they do not suffice.

    As torch's DistributedSampler does.
    """
    size = world_size()
    missing = -len(items) % size
    return (items + items[:missing])[rank() :: size]
