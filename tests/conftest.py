"""What all tests share: how hypothesis draws, and how many threads torch may take."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

# The gate draws the same cases every time, so that it fails for changes only; `make fuzz` draws fresh ones.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much]}
settings.register_profile("gate", max_examples=300, derandomize=True, **_common)
settings.register_profile("fuzz", max_examples=5_000, print_blob=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

torch.set_num_threads(1)  # two test workers on two cores
