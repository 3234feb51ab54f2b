"""The fit of the CPU time per refusal and per answer."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.groups.overload import Overload
from benchmarks.load import Load
from benchmarks.servers import Server

ANSWER_SECONDS, REFUSAL_SECONDS = 200e-6, 30e-6


def load(answered: int, refused: int) -> Load:
    latencies = np.full(answered, 0.01), np.full(refused, 0.1)
    cpu_seconds = answered * ANSWER_SECONDS + refused * REFUSAL_SECONDS
    return Load(1.0, latencies[0], {200: answered, 429: refused}, latencies[1], answered, cpu_seconds=cpu_seconds)


def test_the_cpu_time_of_a_refusal_is_separated_from_that_of_an_answer() -> None:
    row = Overload("kind", Server(80, 1), [])._refusal_row([load(5000, 0), load(4600, 2000), load(4000, 6000)])
    assert row.ratio == pytest.approx(REFUSAL_SECONDS / ANSWER_SECONDS)
    assert (row.ours.partition(" (")[0], row.against) == ("30 us", "200 us")
