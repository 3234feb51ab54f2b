from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from model_store.demo import install_demo
from tests.service.console.browser import CHROMIUM, launch, opened
from tests.service.serving import Running, in_processes

TOKEN, WRITE_KEY = "t" * 20, "w" * 20


@pytest.fixture(scope="package")  # Playwright keeps an event loop running in this thread until it ends
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("NOT RUN: the console needs Chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The demo, with everything that the console can do switched on."""
    store: Path = tmp_path_factory.mktemp("console") / "models"
    install_demo(store)
    with in_processes(store, admin_token=TOKEN, write_keys=WRITE_KEY, training_threads="1") as running:
        yield running


@pytest.fixture
def visit(browser: Browser, demo: Running) -> Any:
    """Opens a view of the demo's console: `with visit("#/ask") as page`."""

    @contextmanager
    def open_view(view: str, **options: Any) -> Iterator[Page]:
        with opened(browser, f"{demo.client.base_url}/{view}", **options) as page:
            yield page

    return open_view
