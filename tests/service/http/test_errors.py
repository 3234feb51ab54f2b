"""Every code of a refusal has a status code."""

from __future__ import annotations

from typing import get_args

from service.errors import Code, Refusal
from service.http.errors import STATUS, HttpRefusal, headers_for


def test_every_code_has_a_status_code() -> None:
    assert set(STATUS) == set(get_args(Code))


def test_only_a_refusal_that_may_succeed_later_names_a_time_to_retry() -> None:
    assert headers_for(Refusal("overloaded", "busy")) == {"retry-after": "1"}
    assert headers_for(Refusal("invalid", "wrong")) == {}
    assert headers_for(HttpRefusal("not_ready", "later", headers={"retry-after": "9", "x": "y"})) == {
        "retry-after": "9",
        "x": "y",
    }
