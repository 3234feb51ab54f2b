"""The picture of docs/deployment.md, made anew: `python -m tests.deploy.screenshot docs/images/under-load.png`.

The demo is trained and served by two workers with Redis, our Prometheus scrapes it, load comes in steps, and past the middle
a second version takes over. Chromium then looks at the graphs that Prometheus draws of the dashboard's own queries.
"""

from __future__ import annotations

import html
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import httpx

from tests.deploy import queries
from tests.deploy.test_prometheus import prometheus
from tests.deploy.tools import need, run
from tests.service.redis_server import RedisServer
from tests.service.serving import in_processes, until

PANELS = (
    ("Requests", 0, True),
    ("Answers", 2, False),
    ("Stages", 0, False),
    ("Look-ups", 0, True),
    ("Served version", 0, True),
    ("Memory", 0, False),
)
"""Of the dashboard: which of its queries, and whether it is stacked."""
PACES = (100, 200, 300, 450, 450, 300)
"""Requests a second, one step after another."""
STEP_SECONDS, CALLERS = 25.0, 6
WIDTH, HEIGHT, ABOVE = 800, 830, 100
"""Of one graph, and what is cut off above it: Prometheus' menu."""


def train(store: Path, seed: int) -> None:
    command = (sys.executable, "-m", "training", "--recipe", "digits", "--activate", "always", "--quiet")
    run(*command, "--store", store, "--seed", str(seed), seconds=300)


def load(address: str, pace: list[float], stopped: threading.Event) -> None:
    """One caller's: mostly about known nodes, now and then about one that is not there."""
    with httpx.Client(base_url=address, timeout=10) as client:
        asked = 0
        while not stopped.is_set():
            due = time.monotonic() + CALLERS / pace[0]
            asked += 1
            node = 10**9 if asked % 50 == 0 else asked % 300
            new = {"id": "new", "features": [asked % 16] * 64, "neighbors": [asked % 900, 7]}
            with suppress(httpx.TransportError):
                client.post("/predict", json={"nodes": [node], "new_nodes": [new] if asked % 3 == 0 else []})
            time.sleep(max(0.0, due - time.monotonic()))


def under_load(address: str, store: Path) -> None:
    """Returns when the last step is over; a second version goes live past the middle."""
    pace, stopped = [float(PACES[0])], threading.Event()
    callers = [threading.Thread(target=load, args=(address, pace, stopped)) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        for step, rate in enumerate(PACES):
            pace[0], end = float(rate), time.monotonic() + STEP_SECONDS
            if step == len(PACES) // 2:
                train(store, seed=1)
            time.sleep(max(0.0, end - time.monotonic()))
    finally:
        stopped.set()
        for caller in callers:
            caller.join()


def graphs(address: str, seconds: float) -> list[str]:
    """Addresses of Prometheus' own pages, one for each panel."""
    panels = {panel["title"]: panel for panel in queries.read_dashboard()["panels"]}
    found = []
    for title, number, stacked in PANELS:
        given = {"panels": [{"targets": [panels[title]["targets"][number]]}], "annotations": {"list": []}}
        (query,) = queries.of_dashboard(given)
        view = {"expr": query.replace("[1m]", "[20s]"), "tab": 0, "range_input": f"{seconds:.0f}s", "stacked": int(stacked)}
        found.append(f"{address}/classic/graph?{urlencode({f'g0.{name}': value for name, value in view.items()})}")
    return found


def photograph(pages: list[str], place: Path) -> None:
    """All pages side by side, in one picture. Framed by a page of the same site: within another one they draw nothing."""
    frames = "".join(f'<div><iframe src="{html.escape(page)}"></iframe></div>' for page in pages)
    style = f"div {{float: left; width: {WIDTH}px; height: {HEIGHT}px; overflow: hidden}}"
    style += f"iframe {{width: {WIDTH}px; height: {HEIGHT + ABOVE}px; margin-top: -{ABOVE}px; border: 0}} body {{margin: 0}}"
    size = f"--window-size={2 * WIDTH},{HEIGHT * ((len(pages) + 1) // 2)}"
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=20000", size)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(f"<style>{style}</style>{frames}")
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            page = f"http://127.0.0.1:{server.server_port}/page.html"
            run(need("chromium"), *options, f"--screenshot={place}", page, seconds=120)
        finally:
            server.shutdown()
            server.server_close()


def main(place: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), Path(name) / "models"
        train(store, seed=0)
        redis = RedisServer(folder)
        try:
            with (
                in_processes(store, workers=2, redis_url=redis.url, access_log="false") as (service, _process, _lines),
                prometheus(folder, service.base_url.port or 0) as client,
            ):
                until(lambda: service.get("/health/ready").status_code == 200)
                under_load(str(service.base_url), store)
                photograph(graphs(str(client.base_url).rstrip("/"), STEP_SECONDS * (len(PACES) + 1)), place)
        finally:
            redis.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
