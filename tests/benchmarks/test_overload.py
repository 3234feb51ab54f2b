"""The fit that separates the CPU time of refusals from that of answers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load import Load
from benchmarks.overload import Overload, Turn
from benchmarks.servers import Server

ANSWER_SECONDS, REFUSAL_SECONDS = 200e-6, 30e-6


def turn(answered: int, refused: int) -> Turn:
    load = Load(1.0, np.full(answered, 0.01), {200: answered, 429: refused}, np.full(refused, 0.1), answered)
    return Turn(load, answered * ANSWER_SECONDS + refused * REFUSAL_SECONDS)


def test_the_cpu_time_of_a_refusal_is_separated_from_that_of_an_answer() -> None:
    row = Overload("kind", Server(80, 1), [])._refusal([turn(5000, 0), turn(4600, 2000), turn(4000, 6000)])
    assert row.ratio == pytest.approx(REFUSAL_SECONDS / ANSWER_SECONDS)
    assert (row.ours.partition(" (")[0], row.against) == ("30 us", "200 us")
