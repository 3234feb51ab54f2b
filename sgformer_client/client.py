"""A typed client, for programs: `Client` and `AsyncClient`. They ask again where the service is busy, or restarts.

    from sgformer_client import Client

    with Client("http://127.0.0.1:8000") as client:
        answer = client.predict(nodes=[0, 5])
        print(answer.version, answer.predictions[0].class_name)

Asked again, up to `retries` times, is what was refused for now (429, 503), and what got no answer because the connection
broke: questions change nothing, so asking twice is safe. What timed out is not: it would make a slow service slower.

A wait is never shorter than the `Retry-After` of the service, and never longer than `longest_wait`. Where in between is left
to chance, so that those who were refused together do not come back together. A `Retry-After` that leaves no room for that
is not waited for: the refusal is raised at once.
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

FIRST_WAIT_SECONDS = 0.05  # doubles with every try, where the service does not say how long
REFUSED_FOR_NOW = (429, 503)
NodeLike = NodeId | np.integer[Any]
Nodes = Iterable[NodeLike]
NewNodes = Iterable[Mapping[str, Any]]  # as `new_node` makes them


class EmbedOptions(TypedDict, total=False):
    """The other fields of a request; docs/api.md has their meaning."""

    mode: Literal["exact", "frozen"]
    joint: bool
    edges: Iterable[tuple[NodeLike, NodeLike]]


class PredictOptions(EmbedOptions, total=False):
    embeddings: bool
    probabilities: bool
    top_k: int | None


class ServiceError(Exception):
    """The service refused: `.status`, `.code`, `.details`, and `.retry_after` (seconds) where it did so for now."""

    retry_after: float | None = None

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(f"{message} ({status} {code})")
        self.status, self.code, self.details = status, code, dict(details)


def new_node(node: NodeLike, features: Iterable[float] | Mapping[int, float], neighbors: Nodes = ()) -> dict[str, Any]:
    """A node that the graph does not have. `features` are all of them, or those that are not zero by their index."""
    if isinstance(features, Mapping):
        told: Any = {"indices": [int(one) for one in features], "values": [float(one) for one in features.values()]}
    else:
        told = [float(one) for one in features]
    return {"id": node, "features": told, "neighbors": list(neighbors)}


_FAILED = (ServiceError, httpx.NetworkError, httpx.RemoteProtocolError)
"""Refused, or without an answer: a worker that restarts refuses connections, one that stops closes them. Not timeouts."""


class _Asking:
    """What both clients share: how a question is put, and how long to wait before it is put again."""

    _http_kind: type[httpx.Client] | type[httpx.AsyncClient]

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float | httpx.Timeout = 10.0,
        retries: int = 4,
        longest_wait: float = 5.0,
    ) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http = self._http_kind(base_url=url, headers=headers, timeout=timeout)
        self._retries, self._longest_wait = retries, longest_wait

    def _question(self, path: str, nodes: Nodes, new: NewNodes, options: EmbedOptions, accept: str = "*/*") -> httpx.Request:
        question = {"nodes": nodes, "new_nodes": new, **options}
        content = orjson.dumps(question, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"content-type": "application/json", "accept": accept}
        return self._http.build_request("POST", path, content=content, headers=headers)

    def _wait(self, error: ServiceError | httpx.TransportError, attempt: int) -> float:
        """Seconds until the next try. Raises the error where there is none."""
        told = error.retry_after if isinstance(error, ServiceError) else 0.0
        if told is None or told >= self._longest_wait or attempt >= self._retries:
            raise error
        backoff = FIRST_WAIT_SECONDS * 2 ** min(attempt, 20)  # a power without bound would overflow
        least = max(told, min(backoff, self._longest_wait / 2))
        return random.uniform(least, min(2 * least, self._longest_wait))  # noqa: S311  # no secret


class Client(_Asking):
    """Methods raise ServiceError where the service refuses, and the error of httpx where no answer comes."""

    _http: httpx.Client
    _http_kind = httpx.Client

    def predict(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[PredictOptions]) -> PredictAnswer:
        return PredictAnswer.model_validate_json(self._ask(self._question("/predict", nodes, new_nodes, options)))

    def embed(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[EmbedOptions]) -> NDArray[np.float32]:
        return _array(self._ask(self._question("/embed", nodes, new_nodes, options, "application/x-npy")))

    def models(self) -> ModelsAnswer:
        return ModelsAnswer.model_validate_json(self._ask(self._http.build_request("GET", "/models")))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: httpx.Request) -> bytes:
        attempt = 0
        while True:
            try:
                return _content(self._http.send(request))
            except _FAILED as error:
                time.sleep(self._wait(error, attempt))
            attempt += 1


class AsyncClient(_Asking):
    """`Client`, awaited."""

    _http: httpx.AsyncClient
    _http_kind = httpx.AsyncClient

    async def predict(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[PredictOptions]) -> PredictAnswer:
        return PredictAnswer.model_validate_json(await self._ask(self._question("/predict", nodes, new_nodes, options)))

    async def embed(
        self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[EmbedOptions]
    ) -> NDArray[np.float32]:
        return _array(await self._ask(self._question("/embed", nodes, new_nodes, options, "application/x-npy")))

    async def models(self) -> ModelsAnswer:
        return ModelsAnswer.model_validate_json(await self._ask(self._http.build_request("GET", "/models")))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, request: httpx.Request) -> bytes:
        attempt = 0
        while True:
            try:
                return _content(await self._http.send(request))
            except _FAILED as error:
                await asyncio.sleep(self._wait(error, attempt))
            attempt += 1


def _plain(value: Any) -> Any:
    """For what orjson does not take by itself: ranges and the like, and arrays that are strided or of text."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _content(response: httpx.Response) -> bytes:
    if response.status_code == 200:
        return response.content
    try:
        told = response.json()
        error = ServiceError(response.status_code, told["code"], told["error"], told["details"])
    except (ValueError, KeyError, TypeError):  # from a proxy, say
        error = ServiceError(response.status_code, "unknown", response.text[:200], {})
    if error.status in REFUSED_FOR_NOW:
        seconds = response.headers.get("retry-after", "")
        error.retry_after = float(seconds) if seconds.isdecimal() else 0.0  # never a date from this service
    raise error


def _array(content: bytes) -> NDArray[np.float32]:
    return np.asarray(np.load(io.BytesIO(content), allow_pickle=False), dtype=np.float32)
