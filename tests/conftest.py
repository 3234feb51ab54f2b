"""What all tests share: how hypothesis draws, how many threads torch may take, and which files come first."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test workers on two cores; before torch and numpy are there

import pytest
import torch
from hypothesis import HealthCheck, settings

# The gate draws the same cases every time, so that it fails for changes only; `make fuzz` draws fresh ones.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much]}
settings.register_profile("gate", max_examples=100, derandomize=True, **_common)
settings.register_profile("fuzz", max_examples=5_000, print_blob=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

torch.set_num_threads(1)

LONGEST = (
    "service/jobs/test_local.py",
    "test_commands.py",
    "service/jobs/test_redis.py",
    "training/fit/test_loop.py",
    "deploy/test_observability.py",
    "service/test_processes.py",
    "service/rollout/test_rollout.py",
    "service/console/test_console.py",
)
"""Files that take half a minute and more: begun last, one of them would go on alone when all others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0].removeprefix("tests/"), len(order)))
