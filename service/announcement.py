"""What `sgf-serve --demo` prints when it is ready: the address, and a request to try."""

from __future__ import annotations

import json
import sys
import threading
import time
from urllib.error import URLError
from urllib.request import urlopen

QUESTION = {
    "probabilities": False,
    "top_k": 1,
    "new_nodes": [
        {
            "id": "drawn",
            "neighbors": [92, 1119, 1111, 1049],
            "features": {"indices": [12, 20, 27, 28, 35, 36, 43, 44, 51, 52, 60], "values": [1] * 11},
        }
    ],
}
"""A drawn 1 that is not in the graph, with four similar digits as its neighbours."""
READY_SECONDS, POLL_SECONDS = 120.0, 0.1


def announce_when_ready(host: str, port: int) -> None:
    """Starts a thread that prints the address and one curl command when the service is ready."""
    address = f"http://{'127.0.0.1' if host in ('', '0.0.0.0') else host}:{port}"  # noqa: S104  # compared, not bound
    command = f"curl {address}/predict --json '{json.dumps(QUESTION)}'"
    text = f"The demo is served on {address}. Send it a drawn digit from another terminal:\n\n{command}\n"
    threading.Thread(target=_announce, args=(address, text), name="announce", daemon=True).start()


def _announce(address: str, text: str) -> None:
    give_up_at = time.monotonic() + READY_SECONDS
    while time.monotonic() < give_up_at:
        try:
            with urlopen(f"{address}/health/ready", timeout=5):  # noqa: S310  # an address of our own
                sys.stdout.write(f"\n{text}\n")
                sys.stdout.flush()
                return
        except (URLError, OSError):  # not listening yet, or 503
            time.sleep(POLL_SECONDS)
