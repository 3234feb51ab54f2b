"""A device that does not exist: its tensors hold data in host memory, compute there, and refuse to meet tensors of the CPU.

It goes where torch's FakeTensorMode cannot: fake tensors have no values for `.item()` and no sparse matrices
(https://github.com/pytorch/pytorch/issues/99404), and in a build of torch for CPUs, fake tensors on `cuda` have no indexing
and no gradients. Its rules are those of a GPU, or stricter: a GPU takes indices of the CPU.
`start_device` changes torch for the whole process: call it in a process of its own (`tests.ranks`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from sgformer.full_graph import collectives
from training.fit import processes

DEVICE = "pretended:0"
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
COLLECTIVES = ("all_gather", "all_to_all_single", "broadcast")
RANDOM = getattr(torch.ops.aten.random_, "from")  # a keyword of Python
LIBRARY = torch.library.Library("_", "IMPL")
GENERATOR = torch.Generator()
"""Its own random numbers, as a GPU has. `torch.manual_seed` seeds them too."""


class Module(_DummyBackendModule):
    def manual_seed_all(self, seed: int) -> None:
        GENERATOR.manual_seed(seed)


class MixedDevicesError(RuntimeError):
    """An operation has tensors of the CPU and of the device."""


class PretendedTensor(torch.Tensor):
    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> PretendedTensor:
        strides = {"strides": host.stride(), "storage_offset": host.storage_offset()} if host.layout is torch.strided else {}
        with torch.inference_mode(False):  # a thread may pass a tensor to one that is in inference mode
            made = torch.Tensor._make_wrapper_subclass(cls, host.shape, dtype=host.dtype, device=DEVICE, **strides)
        made.host = host
        return made

    def tolist(self) -> Any:
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.inplace_view in operation.tags:  # it changes the shape of a tensor
            with no_dispatch():
                operation(*args, **(kwargs or {}))
        parts = operation.decompose(*args, **(kwargs or {}))  # in inference mode, operations come whole
        return compute(operation, *args, **(kwargs or {})) if parts is NotImplemented else parts


def start_device(nccl: bool = False) -> str:
    """Returns its name. Call it before the first backward pass: torch then counts the devices.

    `nccl`: as with nccl, processes exchange tensors of the device, and none of the CPU.
    """
    _setup_privateuseone_for_python_backend(DEVICE.partition(":")[0], Module())
    LIBRARY.fallback(compute, "PrivateUse1")  # for tensors that are made on the device
    set_free_memory(2**40)
    if nccl:
        for module in (collectives, processes):
            module.communication_device = lambda: torch.device(DEVICE)
        for name in COLLECTIVES:
            setattr(dist, name, _for_the_device(getattr(dist, name)))
    return DEVICE


def set_free_memory(num_bytes: int) -> None:
    torch.cuda.mem_get_info = lambda _device=None: (num_bytes, num_bytes)


def compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs an operation in host memory. Its result is on the device that a GPU would leave it on."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    devices = {tensor.device.type for tensor in tensors if tensor.dim() or isinstance(tensor, PretendedTensor)}
    if len(devices) > 1 and operation not in COPIES:
        raise MixedDevicesError(f"{operation} has tensors of {' and '.join(sorted(devices))}")
    if kwargs.get("device") is not None:
        on_device = torch.device(kwargs["device"]).type != "cpu"
        kwargs = {**kwargs, "device": "cpu"}
    else:
        changed = tensors[:1] if operation in COPIES else tensors
        on_device = any(isinstance(tensor, PretendedTensor) for tensor in changed)
    if operation is RANDOM:
        kwargs["generator"] = GENERATOR
    known = {id(tensor.host): tensor for tensor in tensors if isinstance(tensor, PretendedTensor)}

    def to_host(value: Any) -> Any:
        return value.host if isinstance(value, PretendedTensor) else value

    def to_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not on_device:
            return value
        return known[id(value)] if id(value) in known else PretendedTensor(value)

    return tree_map(to_device, operation(*tree_map(to_host, args), **tree_map(to_host, kwargs)))


def _for_the_device(collective: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not all(isinstance(tensor, PretendedTensor) for tensor in tensors):
            raise MixedDevicesError(f"{collective.__name__} has tensors of the CPU, which nccl refuses")
        return collective(*args, **kwargs)

    return call
