"""Applies a stream of events to the live graph as a consumer of Kafka would, each event exactly once.

    .venv/bin/python examples/replay_stream.py STREAM.jsonl ADDRESS WRITE_KEY

A line is an event: {"offset": 17, "operations": [{"op": "add_node", ...}, ...]}. The offset is part of the idempotency key,
so an event that is delivered again, after a crash or a rebalance, is not applied again. With Kafka, replace `read_events`
with a poll of the consumer, and commit the offset after `change_graph` has returned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgformer_client import Client

TOPIC, PARTITION = "graph-changes", 0


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def replay(client: Client, path: Path) -> None:
    for event in read_events(path):
        key = f"{TOPIC}-{PARTITION}-{event['offset']}"
        change = client.change_graph(event["operations"], upsert=True, idempotency_key=key)
        print(f"offset {event['offset']}: change {change.sequence}, {change.nodes} nodes, {change.durability}")


if __name__ == "__main__":
    stream, address, write_key = sys.argv[1:]
    with Client(address, key=write_key) as client:
        replay(client, Path(stream))
