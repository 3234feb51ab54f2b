from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.deploy import images
from tests.deploy.docker_engine import engine_answers, own_engine
from tests.deploy.stack import Stack, running_stack
from tests.deploy.test_tls import make_certificate
from tests.service.conftest import store

__all__ = ["store"]


@pytest.fixture(scope="session")
def available() -> Iterator[set[str]]:
    """Builds our images. Returns the services of compose with an image of others that was pulled or has a stand-in."""
    with ExitStack() as stack:
        own = not engine_answers()
        if own:
            stack.enter_context(own_engine())
        stack.enter_context(images.served_wheels())
        images.build_ours(own)
        yield images.provide_others(own)


@pytest.fixture(scope="module")
def stack(available: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(available, make_certificate(tmp_path_factory.mktemp("certificates"))) as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which images the checks used."""
    if images.ORIGINS:
        terminalreporter.section("images")
    for name, origin in images.ORIGINS.items():
        terminalreporter.write_line(f"{name}: {origin}")
