"""`lost_requests` counts the requests that get no answer."""

from __future__ import annotations

from benchmarks.restarts import lost_requests
from tests.benchmarks.servers import Answering, Closing, serving


def test_a_server_that_answers_everything_loses_no_request() -> None:
    with serving(Answering) as port:
        lost, sent = lost_requests(port, lambda: None)
    assert lost == 0 < sent


def test_requests_on_connections_that_the_server_closed_are_lost() -> None:
    with serving(Closing) as port:
        lost, sent = lost_requests(port, lambda: None)
    assert 0 < lost < sent
