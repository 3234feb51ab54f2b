"""A job record accepts the same model names as the store."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from model_store import InvalidName
from model_store.format.layout import checked_model
from service.jobs.job import Job


@pytest.mark.parametrize("name", ["a", "0", "a-b_c", "a" * 64])
def test_a_valid_name(name: str) -> None:
    assert Job.new(checked_model(name), {}).model == name


@pytest.mark.parametrize("name", ["", "-a", "_a", "A", "a" * 65, "a/b", "..", "a\n", "ä"])
def test_an_invalid_name(name: str) -> None:
    with pytest.raises(InvalidName):
        checked_model(name)
    with pytest.raises(ValidationError):
        Job.new(name, {})
