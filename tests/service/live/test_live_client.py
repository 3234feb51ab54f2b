"""The client changes the graph and reads it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from sgformer_client import AsyncClient, Client, ServiceError, add_node, set_features
from tests.service.live.rebuilt import KEY, features
from tests.service.serving import in_thread


def test_both_clients_change_the_graph_and_read_it(own_store: Path) -> None:
    with in_thread(own_store, write_keys=(KEY,)) as http, Client(str(http.base_url), key=KEY) as client:
        changed = client.change_graph([add_node(100, np.array(features(1)), np.array([0, 1]), label=2)], idempotency_key="a")
        assert (changed.sequence, changed.nodes, changed.applied, changed.durability) == (1, 61, 1, "fsync")
        assert client.change_graph([add_node(100, features(1), [0, 1], label=2)], idempotency_key="a").sequence == 1
        with pytest.raises(ServiceError, match="exists already") as caught:
            client.change_graph([add_node(100, {0: 1.0})])
        assert (caught.value.status, caught.value.details) == (409, {"operation": 0, "node": 100})
        node = client.graph_node(100)
        assert (node.neighbors, node.label, node.sequence) == ([0, 1], 2, 1)
        assert node.added
        assert client.graph().sequence == 1
        without = client.predict([0], min_sequence=1, assuming=[{"op": "remove_node", "id": 100}])
        assert (without.sequence, without.assumed) == (1, 1)
        assert without.predictions[0].probabilities != client.predict([0]).predictions[0].probabilities
        assert client.embed([0], min_sequence=1).shape == (1, 8)

        async def change() -> None:
            async with AsyncClient(str(http.base_url), key=KEY) as other:
                changed = await other.change_graph([set_features(100, {1: 2.0}), add_node(0, features(2))], upsert=True)
                assert (changed.sequence, changed.skipped) == (2, 1)
                assert (await other.graph()).hash == client.graph().hash
                assert (await other.graph_node(100)).sequence == 2

        asyncio.run(change())
