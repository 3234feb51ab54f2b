"""What `auto` means, and what is said if there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sgformer import device
from sgformer.device import DeviceError, choose_device


def set_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("wanted", "gpus", "processes", "number", "chosen"),
    [
        ("auto", 0, "1", "0", "cpu"),
        ("auto", 1, "1", "0", "cuda:0"),
        ("auto", 2, "2", "1", "cuda:1"),
        ("auto", 1, "2", "0", "cpu"),  # both processes choose the same kind, because they talk over gloo or over nccl
        ("auto", 1, "2", "1", "cpu"),
        ("cpu", 2, "1", "0", "cpu"),
        ("cuda", 2, "2", "1", "cuda:1"),
    ],
)
def test_the_device_of_a_process(
    monkeypatch: pytest.MonkeyPatch, wanted: str, gpus: int, processes: str, number: str, chosen: str
) -> None:
    set_gpus(monkeypatch, gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    monkeypatch.setenv("LOCAL_RANK", number)
    assert choose_device(wanted) == chosen


def test_the_reason_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(wanted: str = "cuda") -> str:
        with pytest.raises(DeviceError) as caught:
            choose_device(wanted)
        return str(caught.value)

    unavailable = f"--device (SGF_DEVICE) is cuda, but torch.cuda.is_available() is False: torch {torch.__version__}"
    set_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert reason() == f"{unavailable} is a build for CPUs"
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert reason() == f"{unavailable} finds no GPU; check its driver"
    set_gpus(monkeypatch, 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert reason().endswith("this machine has 1 GPU(s) for 3 processes, expected one for each")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert reason().endswith("torch is not installed; install the GPU image or choose cpu")
    assert reason("gpu") == "--device (SGF_DEVICE) is 'gpu': expected one of auto, cpu, cuda"


def test_torch_is_not_loaded_to_look_for_a_gpu_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_gpus(monkeypatch, 1)
    monkeypatch.setattr(device, "DRIVER", tmp_path / "nvidiactl")
    loaded = dict(__import__("sys").modules)
    del loaded["torch"]
    monkeypatch.setattr("sgformer.device.sys.modules", loaded)
    assert choose_device("auto") == "cpu"
    device.DRIVER.touch()
    assert choose_device("auto") == "cuda:0"
