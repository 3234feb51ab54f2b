"""A typed client, for programs: `Client` and `AsyncClient`. They retry what the service asks to retry (429, 503).

with Client("http://127.0.0.1:8000") as client:
answer = client.predict(nodes=[0, 5])
print(answer.version, answer.predictions[0].class_name)
"""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from service.answers import PredictAnswer
from service.questions import NodeId

RETRIED = (429, 503)
NewNodeLike = Mapping[str, Any]
"""As `new_node` makes them."""


class ServiceError(Exception):
    """The service refused: `.status`, `.code`, `.details`."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(f"{message} ({status} {code})")
        self.status, self.code, self.details = status, code, dict(details)


def new_node(
    node: NodeId, features: Iterable[float] | Mapping[int, float], neighbors: Iterable[NodeId] = ()
) -> dict[str, Any]:
    """A node that the graph does not have. `features` are all of them, or those that are not zero by their index."""
    told: Any
    if isinstance(features, Mapping):
        told = {"indices": [int(one) for one in features], "values": [float(one) for one in features.values()]}
    else:
        told = [float(one) for one in features]
    return {"id": node, "features": told, "neighbors": list(neighbors)}


class _Calls:
    """What both clients share: how a question is put, and how an answer is read."""

    def __init__(self, retries: int, longest_wait: float) -> None:
        self._retries, self._longest_wait = retries, longest_wait

    def _wait(self, response: httpx.Response, attempt: int) -> float | None:
        """Seconds until the next try; None where there is none."""
        if response.status_code not in RETRIED or attempt >= self._retries:
            return None
        told = response.headers.get("retry-after", "")
        backoff = min(self._longest_wait, 0.05 * 2**attempt) * random.uniform(0.5, 1)  # noqa: S311  # no secret
        return float(max(backoff, min(self._longest_wait, float(told)))) if told.isdecimal() else backoff

    @staticmethod
    def _question(nodes: Sequence[NodeId], new_nodes: Sequence[NewNodeLike], options: Mapping[str, Any]) -> dict[str, Any]:
        return {"nodes": list(nodes), "new_nodes": [dict(one) for one in new_nodes], **options}

    @staticmethod
    def _checked(response: httpx.Response) -> httpx.Response:
        if response.status_code == 200:
            return response
        try:
            told = response.json()
            raise ServiceError(response.status_code, told["code"], told["error"], told["details"])
        except (ValueError, KeyError, TypeError):
            raise ServiceError(response.status_code, "unknown", response.text[:200], {}) from None

    @staticmethod
    def _array(response: httpx.Response) -> NDArray[np.float32]:
        array: NDArray[np.float32] = np.load(io.BytesIO(response.content), allow_pickle=False)
        return array


_NPY = {"accept": "application/x-npy"}


class Client(_Calls):
    def __init__(
        self, url: str, *, key: str | None = None, timeout: float = 10.0, retries: int = 4, longest_wait: float = 5.0
    ) -> None:
        super().__init__(retries, longest_wait)
        self._http = httpx.Client(base_url=url, headers=_headers(key), timeout=timeout)

    def predict(self, nodes: Sequence[NodeId] = (), new_nodes: Sequence[NewNodeLike] = (), **options: Any) -> PredictAnswer:
        """`options` are the other fields of the request: mode, joint, edges, embeddings, probabilities, top_k."""
        response = self._post("/predict", self._question(nodes, new_nodes, options), {})
        return PredictAnswer.model_validate_json(response.content)

    def embed(
        self, nodes: Sequence[NodeId] = (), new_nodes: Sequence[NewNodeLike] = (), **options: Any
    ) -> NDArray[np.float32]:
        return self._array(self._post("/embed", self._question(nodes, new_nodes, options), _NPY))

    def models(self) -> dict[str, Any]:
        found: dict[str, Any] = self._checked(self._http.get("/models")).json()
        return found

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _post(self, path: str, question: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        attempt = 0
        while True:
            response = self._http.post(path, json=question, headers=headers)
            wait = self._wait(response, attempt)
            if wait is None:
                return self._checked(response)
            time.sleep(wait)
            attempt += 1


class AsyncClient(_Calls):
    def __init__(
        self, url: str, *, key: str | None = None, timeout: float = 10.0, retries: int = 4, longest_wait: float = 5.0
    ) -> None:
        super().__init__(retries, longest_wait)
        self._http = httpx.AsyncClient(base_url=url, headers=_headers(key), timeout=timeout)

    async def predict(
        self, nodes: Sequence[NodeId] = (), new_nodes: Sequence[NewNodeLike] = (), **options: Any
    ) -> PredictAnswer:
        response = await self._post("/predict", self._question(nodes, new_nodes, options), {})
        return PredictAnswer.model_validate_json(response.content)

    async def embed(
        self, nodes: Sequence[NodeId] = (), new_nodes: Sequence[NewNodeLike] = (), **options: Any
    ) -> NDArray[np.float32]:
        return self._array(await self._post("/embed", self._question(nodes, new_nodes, options), _NPY))

    async def models(self) -> dict[str, Any]:
        found: dict[str, Any] = self._checked(await self._http.get("/models")).json()
        return found

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _post(self, path: str, question: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        attempt = 0
        while True:
            response = await self._http.post(path, json=question, headers=headers)
            wait = self._wait(response, attempt)
            if wait is None:
                return self._checked(response)
            await asyncio.sleep(wait)
            attempt += 1


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}
