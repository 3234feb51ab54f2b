"""How smoothly the map of the console pans: 100,000 points in headless Chromium, without a graphics card.

`python -m benchmarks.console [POINTS ...]` needs Chromium and Playwright. The page is the real one, served with the demo;
only the answer of /map is generated, because the demo has 1,796 nodes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, Route, sync_playwright

from model_store.demo import install_demo
from tests.service.console.browser import launch
from tests.service.serving import in_thread

SECONDS = 5.0
PAN = """async (seconds) => {
  const plot = window.sgfMap, frames = [], start = performance.now();
  plot.reset();
  for (let now = start; now - start < seconds * 1000;) {
    const angle = (now - start) / 300;
    plot.pan(12 * Math.cos(angle), 12 * Math.sin(angle));
    const next = await new Promise(requestAnimationFrame);
    frames.push(next - now);
    now = next;
  }
  frames.shift();
  frames.sort((a, b) => a - b);
  return {
    fps: 1000 * frames.length / frames.reduce((a, b) => a + b, 0), p99: frames[Math.floor(0.99 * frames.length)],
    canvas: [plot.canvas.width, plot.canvas.height],
  };
}"""


def generated_map(points: int, origin: dict[str, Any]) -> str:
    """Ten clouds of points, as /map would answer."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, points)
    angles = labels * (2 * np.pi / 10)
    places = 3 * np.stack([np.cos(angles), np.sin(angles)]) + rng.normal(scale=0.7, size=(2, points))
    x, y = places.round(4).tolist()
    parts = {"method": "pca", "explained": [0.3, 0.2], "nodes": points, "shown": points, "mean": [0.0] * 64}
    parts |= {"components": [[0.1] * 64] * 2, "classes": [str(digit) for digit in range(10)], "ids": list(range(points))}
    return json.dumps(origin | parts | {"x": x, "y": y, "labels": labels.tolist(), "predictions": labels.tolist()})


def measure(page: Page, address: str, points: int, origin: dict[str, Any]) -> dict[str, Any]:
    body = generated_map(points, origin)

    def answer(route: Route) -> None:
        route.fulfill(body=body, content_type="application/json")

    page.route("**/map?*", answer)
    page.goto(f"{address}/#/map")
    page.get_by_test_id("map").wait_for()
    page.evaluate("new Promise((done) => setTimeout(done, 1500))")
    result: dict[str, Any] = page.evaluate(PAN, SECONDS)
    return result


def main() -> None:
    sizes = [int(text) for text in sys.argv[1:]] or [10_000, 100_000]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        install_demo(Path(folder))
        with in_thread(Path(folder)) as client, launch(playwright) as browser:
            origin = {name: value for name, value in client.get("/health/ready").json().items() if name != "status"}
            for points in sizes:
                with browser.new_context(viewport={"width": 1280, "height": 860}) as context:
                    figures = measure(context.new_page(), str(client.base_url).rstrip("/"), points, origin)
                width, height = figures["canvas"]
                print(f"{points:>9,} points: {figures['fps']:5.1f} frames/s, p99 of a frame {figures['p99']:.0f} ms", end="")
                print(f", canvas {width} x {height}, {browser.version}")


if __name__ == "__main__":
    main()
