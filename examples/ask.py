"""Sends requests to a running service: first a few, then 50 at the same time.

`make run` in one terminal, and in another: `.venv/bin/python examples/ask.py [ADDRESS]`
"""

from __future__ import annotations

import asyncio
import sys

from sgformer_client import AsyncClient, Client, ServiceError, new_node


def send_a_few(address: str) -> None:
    with Client(address) as client:
        if client.models().serving is None:
            sys.exit("the service has no model yet")
        node = new_node("mine", [0.0] * client.features().width, neighbors=[3, 14])
        answer = client.predict([0, 5], [node], top_k=2)
        print(f"{answer.model} version {answer.version}, snapshot {answer.snapshot[:12]}")
        for prediction in answer.predictions:
            print(f"  node {prediction.node!r}: {prediction.class_name} ({prediction.exactness})")
        print(f"  shape of the embeddings of two nodes: {client.embed([0, 5]).shape}")
        try:
            client.predict([10**9])
        except ServiceError as error:
            print(f"  the error for a node that does not exist: {error}")


async def send_many(address: str) -> None:
    async with AsyncClient(address) as client:
        answers = await asyncio.gather(*(client.predict([node]) for node in range(50)))
    print(f"{len(answers)} concurrent requests, answered by version {answers[0].version}")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    send_a_few(address)
    asyncio.run(send_many(address))
