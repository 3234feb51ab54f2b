"""Asks a running service, first one question, then many at once.

`make run` in one terminal, and in another: `.venv/bin/python examples/ask.py [ADDRESS]`
"""

from __future__ import annotations

import asyncio
import sys

import httpx

from sgformer_client import AsyncClient, Client, ServiceError, new_node


def one(address: str) -> None:
    with Client(address) as client:
        serving = client.models().serving
        if serving is None:
            sys.exit("there is no model yet")
        width = httpx.get(f"{address}/models/{serving.version}").json()["config"]["in_features"]
        mine = new_node("mine", [0.0] * width, neighbors=[3, 14])
        answer = client.predict([0, 5], [mine], top_k=2)
        print(f"{answer.model} version {answer.version}, snapshot {answer.snapshot[:12]}")
        for prediction in answer.predictions:
            print(f"  node {prediction.node!r}: {prediction.class_name} ({prediction.exactness})")
        print(f"  embeddings of two nodes: {client.embed([0, 5]).shape}")
        try:
            client.predict([10**9])
        except ServiceError as error:
            print(f"  what is not there: {error}")


async def many(address: str) -> None:
    async with AsyncClient(address) as client:
        answers = await asyncio.gather(*(client.predict([node]) for node in range(50)))
    print(f"{len(answers)} questions at once, answered by version {answers[0].version}")


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    one(where)
    asyncio.run(many(where))
