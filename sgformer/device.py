"""The device that computes: the CPU, or a GPU by CUDA. The one place that says what `auto` means, for training and serving.

Imports torch only if a GPU is required or likely, because serving on a CPU has no torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from sgformer.errors import ConfigError

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]
DRIVER = Path("/dev/nvidiactl")
MEMORY_SHARE = 0.7
"""Share of the free memory of a GPU that the states of a graph may take."""


class DeviceError(ConfigError):
    """The device that the settings require is missing or too small."""


def choose_device(wanted: str, setting: str = "--device (SGF_DEVICE)") -> str:
    """Returns "cpu" or "cuda:N" for a `Device`. N is the LOCAL_RANK that torchrun sets: every process has its own GPU.

    auto: a GPU if torch finds one for every process of this machine, else the CPU.

    Args:
        setting: the name of the setting, for the message.

    Raises:
        DeviceError: a GPU is required, and there is none for this process; or `wanted` is not a `Device`.
    """
    if wanted not in get_args(Device):
        raise DeviceError(f"{setting} is {wanted!r}: expected one of {', '.join(get_args(Device))}")
    problem = "not wanted" if wanted == "cpu" else _why_no_gpu(required=wanted == "cuda")
    if problem and wanted == "cuda":
        raise DeviceError(f"{setting} is cuda, but {problem}")
    return "cpu" if problem else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def fits_on_gpu(device: torch.device, num_bytes: int) -> bool:
    """Whether arrays of this size may be placed on the GPU."""
    import torch

    free, _total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch keeps freed memory
    return num_bytes <= MEMORY_SHARE * free


def _why_no_gpu(required: bool) -> str | None:
    """None if there is a GPU for every process of this machine. Without a driver, torch is not loaded to look for one."""
    if not required and "torch" not in sys.modules and not DRIVER.exists():
        return "there is no driver"
    try:
        import torch
    except ImportError:
        return "torch is not installed; install the GPU image or choose cpu"
    if not torch.cuda.is_available():
        cause = "is a build for CPUs" if torch.version.cuda is None else "finds no GPU; check its driver"
        return f"torch.cuda.is_available() is False: torch {torch.__version__} {cause}"
    gpus, processes = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return f"this machine has {gpus} GPU(s) for {processes} processes, expected one for each" if gpus < processes else None
