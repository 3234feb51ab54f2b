"""Drives the console in Chromium, as a user does."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, Playwright, expect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
"""No sandbox: tests may run as root, in a container."""
PATIENCE_MS = 30_000
THREE = [
    *(
        (0.49 + 0.16 * math.cos(math.radians(angle)), 0.33 + 0.16 * math.sin(math.radians(angle)))
        for angle in range(-150, 91, 15)
    ),
    *(
        (0.48 + 0.20 * math.cos(math.radians(angle)), 0.68 + 0.19 * math.sin(math.radians(angle)))
        for angle in range(-90, 146, 15)
    ),
]
"""A drawn 3: two arcs, as shares of the board."""


def launch(playwright: Playwright) -> Browser:
    """Debian's Chromium; Playwright downloads none."""
    expect.set_options(timeout=PATIENCE_MS)
    return playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """A page in a context of its own. Fails if a script fails, or the page breaks its own policy."""
    context = browser.new_context(**({"viewport": {"width": 1200, "height": 850}, "reduced_motion": "reduce"} | options))
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda message: problems.append(message.text) if "Content Security Policy" in message.text else None
        )
        page.goto(address)
        yield page
        assert not problems
    finally:
        context.close()


def draw(page: Page, points: list[tuple[float, float]] = THREE) -> None:
    box = page.get_by_test_id("pad").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=3)
    page.mouse.up()


def confirm(page: Page, action: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()
