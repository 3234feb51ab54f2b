"""The full forward on a device computes what it computes on the CPU, and no operation mixes the two (`tests.pretended`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgformer.full_graph import passes
from tests.pretended import set_free_memory, start_device
from tests.ranks import run_ranks
from tests.sgformer.full_graph.test_shard import CASES, forward

MODES = {
    "placed, one block": (2**30, 1000),
    "placed, in blocks": (2**30, 70),
    "too large for the device": (2**10, 70),
}
"""Free memory of the device in bytes, rows of a block."""


def forwards(device: str, block_rows: int) -> list[Any]:
    passes.BLOCK_ROWS = block_rows
    return [forward(case, np.float32, 100, number % 2 == 0, device) for number, case in enumerate(CASES)]


def in_all_modes() -> dict[str, tuple[Any, Any]]:
    """For each mode, the results of the device and of the CPU."""
    device, results = start_device(), {}
    for mode, (free_bytes, block_rows) in MODES.items():
        set_free_memory(free_bytes)
        results[mode] = forwards(device, block_rows), forwards("cpu", block_rows)
    return results


@pytest.fixture(scope="module")
def results() -> Any:
    return run_ranks(in_all_modes, 1)[0]


@pytest.mark.parametrize("mode", MODES)
def test_the_device_computes_what_the_cpu_computes(results: Any, mode: str) -> None:
    for (states, sums, _, logits), (states_of_cpu, sums_of_cpu, _, logits_of_cpu) in zip(*results[mode], strict=True):
        for array, other in zip((*states, *sums, logits), (*states_of_cpu, *sums_of_cpu, logits_of_cpu), strict=True):
            np.testing.assert_array_equal(array, other)
