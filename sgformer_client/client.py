"""`Client` and `AsyncClient`: typed clients that retry while the service is overloaded or restarts.

    from sgformer_client import Client

    with Client("http://127.0.0.1:8000") as client:
        answer = client.predict(nodes=[0, 5])
        print(answer.version, answer.predictions[0].class_name)

A client retries a request up to `retries` times after status 429 or 503 and after a broken connection. That is safe, because
these requests change nothing. A client does not retry after a timeout: more requests would make a slow service slower.

The wait before a retry is at least the service's `Retry-After` and at most `longest_wait`, and random in between, so that
clients that were refused together do not return together. If `Retry-After` is `longest_wait` or more, the client raises the
error at once.
"""

from __future__ import annotations

import asyncio
import io
import random
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from sgformer_client.answers import ModelsAnswer, NodeId, PredictAnswer

FIRST_BACKOFF_SECONDS = 0.05
"""The shortest wait if the service sends no `Retry-After`. It doubles with each retry."""
RETRIED_STATUSES = (429, 503)
NodeLike = NodeId | np.integer[Any]
Nodes = Iterable[NodeLike]
NewNodes = Iterable[Mapping[str, Any]]
"""Made by `new_node`."""


class EmbedOptions(TypedDict, total=False):
    """Optional fields of a request to /embed; docs/api.md explains them."""

    mode: Literal["exact", "frozen"]
    joint: bool
    edges: Iterable[tuple[NodeLike, NodeLike]]


class PredictOptions(EmbedOptions, total=False):
    """Optional fields of a request to /predict."""

    embeddings: bool
    probabilities: bool
    top_k: int | None


class ServiceError(Exception):
    """An error response: `.status`, `.code`, `.details`, and for statuses 429 and 503 `.retry_after` in seconds."""

    retry_after: float | None = None

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(f"{message} ({status} {code})")
        self.status, self.code, self.details = status, code, dict(details)


def new_node(node: NodeLike, features: Iterable[float] | Mapping[int, float], neighbors: Nodes = ()) -> dict[str, Any]:
    """Describes a node that is not in the graph.

    Args:
        node: an id of the caller's choice, which the response repeats.
        features: all features, or a mapping from index to value of those that are not zero.
        neighbors: ids of known nodes.
    """
    if isinstance(features, Mapping):
        sparse = {"indices": [int(index) for index in features], "values": [float(value) for value in features.values()]}
        return {"id": node, "features": sparse, "neighbors": list(neighbors)}
    return {"id": node, "features": [float(value) for value in features], "neighbors": list(neighbors)}


_RETRIED_ERRORS = (ServiceError, httpx.NetworkError, httpx.RemoteProtocolError)
"""A restarting worker refuses connections or closes them. Timeouts are not in this list."""


class _BaseClient:
    """The parts that both clients share: building requests, and the wait before a retry."""

    _http_class: type[httpx.Client] | type[httpx.AsyncClient]

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float | httpx.Timeout = 10.0,
        retries: int = 4,
        longest_wait: float = 5.0,
    ) -> None:
        """`key`: an API key of the service. `timeout` and `longest_wait` are in seconds."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http = self._http_class(base_url=url, headers=headers, timeout=timeout)
        self._retries, self._longest_wait = retries, longest_wait

    def _predict_request(self, nodes: Nodes, new_nodes: NewNodes, options: PredictOptions) -> httpx.Request:
        return self._post("/predict", {"nodes": nodes, "new_nodes": new_nodes, **options}, "*/*")

    def _embed_request(self, nodes: Nodes, new_nodes: NewNodes, options: EmbedOptions) -> httpx.Request:
        return self._post("/embed", {"nodes": nodes, "new_nodes": new_nodes, **options}, "application/x-npy")

    def _models_request(self) -> httpx.Request:
        return self._http.build_request("GET", "/models")

    def _post(self, path: str, body: dict[str, Any], accept: str) -> httpx.Request:
        content = orjson.dumps(body, default=_to_json_type, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"content-type": "application/json", "accept": accept}
        return self._http.build_request("POST", path, content=content, headers=headers)

    def _seconds_before_retry(self, error: ServiceError | httpx.TransportError, attempt: int) -> float:
        """Raises `error` if the request must not be retried."""
        retry_after = error.retry_after if isinstance(error, ServiceError) else 0.0
        if retry_after is None or retry_after >= self._longest_wait or attempt >= self._retries:
            raise error
        backoff = FIRST_BACKOFF_SECONDS * 2 ** min(attempt, 20)  # the limit keeps the power from overflowing
        shortest = max(retry_after, min(backoff, self._longest_wait / 2))
        return random.uniform(shortest, min(2 * shortest, self._longest_wait))  # noqa: S311  # not a secret


class Client(_BaseClient):
    """Methods raise ServiceError for an error response, and an error of httpx if there is no response."""

    _http: httpx.Client
    _http_class = httpx.Client

    def predict(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[PredictOptions]) -> PredictAnswer:
        return PredictAnswer.model_validate_json(self._send(self._predict_request(nodes, new_nodes, options)))

    def embed(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[EmbedOptions]) -> NDArray[np.float32]:
        return _read_array(self._send(self._embed_request(nodes, new_nodes, options)))

    def models(self) -> ModelsAnswer:
        return ModelsAnswer.model_validate_json(self._send(self._models_request()))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, request: httpx.Request) -> bytes:
        attempt = 0
        while True:
            try:
                return _read_content(self._http.send(request))
            except _RETRIED_ERRORS as error:
                time.sleep(self._seconds_before_retry(error, attempt))
            attempt += 1


class AsyncClient(_BaseClient):
    """The methods of `Client` as coroutines."""

    _http: httpx.AsyncClient
    _http_class = httpx.AsyncClient

    async def predict(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[PredictOptions]) -> PredictAnswer:
        return PredictAnswer.model_validate_json(await self._send(self._predict_request(nodes, new_nodes, options)))

    async def embed(
        self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[EmbedOptions]
    ) -> NDArray[np.float32]:
        return _read_array(await self._send(self._embed_request(nodes, new_nodes, options)))

    async def models(self) -> ModelsAnswer:
        return ModelsAnswer.model_validate_json(await self._send(self._models_request()))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, request: httpx.Request) -> bytes:
        attempt = 0
        while True:
            try:
                return _read_content(await self._http.send(request))
            except _RETRIED_ERRORS as error:
                await asyncio.sleep(self._seconds_before_retry(error, attempt))
            attempt += 1


def _to_json_type(value: Any) -> Any:
    """Converts what orjson does not encode: mappings, ranges and other iterables, and strided or text arrays."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _read_content(response: httpx.Response) -> bytes:
    """The body of a response with status 200. Raises ServiceError for any other status."""
    if response.status_code == 200:
        return response.content
    try:
        body = response.json()
        error = ServiceError(response.status_code, body["code"], body["error"], body["details"])
    except (ValueError, KeyError, TypeError):  # not from the service: from a proxy, for example
        error = ServiceError(response.status_code, "unknown", response.text[:200], {})
    if error.status in RETRIED_STATUSES:
        seconds = response.headers.get("retry-after", "")
        error.retry_after = float(seconds) if seconds.isdecimal() else 0.0  # this service never sends a date
    raise error


def _read_array(content: bytes) -> NDArray[np.float32]:
    return np.asarray(np.load(io.BytesIO(content), allow_pickle=False), dtype=np.float32)
