"""When fewer are taken at a time, and for how long."""

from __future__ import annotations

import pytest

from service.crowd import Crowd
from service.settings import Settings

BEAT = 0.01


class Time:
    """A crowd under a clock of its own. 64 places: over 32 callers are many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("service.crowd.time.monotonic", lambda: self.now)
        self.crowd, self.waits = Crowd(Settings(max_inflight=64, max_lag_seconds=0.005)), False

    def pass_beats(self, beats: int, callers: int = 0, seconds: float = 0.0, late: int = 64) -> bool:
        """All call in every beat, and are answered after a time; or, while they wait for long, so many, and others refused.

        Returns whether they wait for long.
        """
        for _ in range(beats):
            for caller in range(callers):
                self.crowd.called(caller)
            taken = min(callers, late) if self.waits else callers
            for _ in range(taken):
                self.crowd.enter()
            self.now += seconds
            for _ in range(taken):
                self.crowd.leave()
            if taken < callers:
                self.crowd.refused()
            self.now += max(0.0, BEAT - seconds)
            self.waits = self.crowd.waits_for_long()
        return self.waits


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_a_crowd_waits_for_long_after_five_beats_in_a_row(time: Time) -> None:
    assert not time.pass_beats(4, callers=64, seconds=0.02)
    assert not time.pass_beats(1, callers=64, seconds=0.001)  # a hiccup, and they are quick again
    assert not time.pass_beats(4, callers=64, seconds=0.02)
    assert time.pass_beats(1, callers=64, seconds=0.02)


@pytest.mark.parametrize(("callers", "in_hand"), [(32, 32), (64, 16)])
def test_a_few_who_call_or_are_in_hand_may_wait_for_as_long_as_it_takes(time: Time, callers: int, in_hand: int) -> None:
    """The second: many call now and then, and it is not for each other that they wait."""
    for _ in range(300):
        for caller in range(callers):
            time.crowd.called(caller)
        assert not time.pass_beats(1, callers=in_hand, seconds=0.02)


def test_it_stays_while_it_is_refused_and_is_gone_a_second_later(time: Time) -> None:
    assert time.pass_beats(5, callers=64, seconds=0.02)
    assert time.pass_beats(500, callers=64, seconds=0.002, late=4)  # quickly answered now, because fewer are taken
    assert time.pass_beats(95, callers=64, seconds=0.001)
    assert not time.pass_beats(10, callers=64, seconds=0.001)


def test_a_few_who_ask_again_at_once_whenever_they_are_refused_are_none(time: Time) -> None:
    assert time.pass_beats(5, callers=64, seconds=0.02)
    assert time.pass_beats(300, callers=33, seconds=0.002, late=4)
    assert not time.pass_beats(210, callers=32, seconds=0.002, late=4)


def test_it_is_gone_once_there_was_nothing_to_do_for_a_quarter_of_a_second(time: Time) -> None:
    assert time.pass_beats(5, callers=64, seconds=0.02)
    assert time.pass_beats(24)
    assert not time.pass_beats(1)
    assert time.pass_beats(5, callers=64, seconds=0.02)
    assert time.pass_beats(24)
    assert time.pass_beats(1, callers=64, seconds=0.001, late=4), "somebody came"
