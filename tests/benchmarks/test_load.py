"""The load generator against a server that stalls: latencies must include the time that requests would have waited."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from benchmarks.load import Stream, accept_queue, closed, open_loop, request, side_by_side
from tests.benchmarks.servers import STALL_SECONDS, Answering, Closing, Refusing, Stalling, serving

RATE, SECONDS = 200.0, 1.5
ASKED = [request(b'{"nodes": [1]}')]


@pytest.mark.parametrize("connections", [4, 300])
def test_a_stall_delays_all_requests_that_are_due_during_it(connections: int) -> None:
    with serving(Stalling) as port:
        load = open_loop(port, Stream(ASKED, RATE, connections=connections), SECONDS)
    assert load.statuses == {200: RATE * SECONDS}, "none is left out"
    assert (load.latencies > 0.05).sum() >= 0.8 * RATE * STALL_SECONDS
    assert 0.9 * STALL_SECONDS <= load.latencies.max() < 10 * STALL_SECONDS


def test_requests_without_an_idle_connection_are_counted() -> None:
    with serving(Stalling) as port:
        few = open_loop(port, Stream(ASKED, RATE, connections=4), SECONDS)
    with serving(Stalling) as port:
        enough = open_loop(port, Stream(ASKED, RATE, connections=300), SECONDS)
    assert few.waited >= 0.8 * RATE * STALL_SECONDS
    assert enough.waited == 0


def test_a_lost_connection_is_counted_and_replaced() -> None:
    with serving(Closing) as port:
        load = open_loop(port, Stream(ASKED, RATE, connections=4), 0.5)
    assert sum(load.statuses.values()) == RATE * 0.5
    assert load.statuses[200] > 0.5 * RATE * 0.5, "20 of 100 answers close a connection"


def test_the_accept_queue_of_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = server.getsockname()[1]
        assert accept_queue(port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            assert (accept_queue(port), accept_queue(other.getsockname()[1])) == (1, 0)
            with server.accept()[0]:
                assert accept_queue(port) == 0


def test_refusals_do_not_count_as_answers() -> None:
    with serving(Refusing) as port:
        load = closed(port, ASKED, 4, 0.3)
    assert load.refused == len(load.refused_latencies) > 0
    assert len(load.latencies) == load.statuses[200] >= load.answered_in_time
    assert load.rate == load.answered_in_time / load.seconds


def test_streams_side_by_side_are_measured_separately() -> None:
    with serving(Answering) as port:
        first, second = side_by_side(port, [Stream(ASKED, 100), Stream(ASKED, 20, seed=1)], 0.5)
    assert (first.statuses, second.statuses) == ({200: 50}, {200: 10})


def test_intended_times_are_even_or_a_seeded_poisson_process() -> None:
    assert np.allclose(Stream(ASKED, 10).intended_times(0.5), [0, 0.1, 0.2, 0.3, 0.4])
    times = Stream(ASKED, 1000, seed=3).intended_times(10)
    assert times == Stream(ASKED, 1000, seed=3).intended_times(10) != Stream(ASKED, 1000, seed=4).intended_times(10)
    gaps = np.diff(times)
    assert len(times) == 10_000
    assert gaps.min() >= 0
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05), "exponential"
