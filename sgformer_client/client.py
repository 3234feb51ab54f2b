"""`Client` and `AsyncClient`: typed clients that retry requests while the service is overloaded or restarts.

    from sgformer_client import Client

    with Client("http://127.0.0.1:8000") as client:
        answer = client.predict(nodes=[0, 5])
        print(answer.version, answer.predictions[0].class_name)

A client retries a request up to `retries` times after status 429 or 503 and after a broken connection. That is safe: the
requests change nothing, except `change_graph`, which has an idempotency key. A client does not retry after a timeout: more
requests would make a slow service slower.

The wait before a retry is at least the service's `Retry-After` and at most `longest_wait`, and random in between, so that
clients that were refused together do not return together. If `Retry-After` is `longest_wait` or more, the client raises the
error at once.
"""

from __future__ import annotations

import asyncio
import io
import random
import reprlib
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import quote

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray

from sgformer_client.answers import (
    ClassesAnswer,
    DriftAnswer,
    ExplainAnswer,
    FeaturesAnswer,
    GraphAnswer,
    GraphChanged,
    MapAnswer,
    ModelsAnswer,
    NodeAnswer,
    NodeId,
    NodesAnswer,
    PredictAnswer,
    SimilarAnswer,
)

FIRST_BACKOFF_SECONDS = 0.05
"""The shortest wait if the service sends no `Retry-After`. It doubles with each retry."""
RETRIED_STATUSES = (429, 503)
NodeLike = NodeId | np.integer[Any]
Nodes = Iterable[NodeLike]
Features = Iterable[float] | Mapping[int, float] | Mapping[str, Any]
NewNodes = Iterable[Mapping[str, Any]]
"""Made by `new_node`."""
Operations = Iterable[Mapping[str, Any]]
"""The operations of docs/live_graph.md; `add_node` and `set_features` make two of them."""


class EmbedOptions(TypedDict, total=False):
    """Optional fields of a request to /embed; docs/api.md explains them."""

    mode: Literal["exact", "frozen"]
    joint: bool
    edges: Iterable[tuple[NodeLike, NodeLike]]
    min_sequence: int | None
    assuming: Operations


class PredictOptions(EmbedOptions, total=False):
    """Optional fields of a request to /predict."""

    embeddings: bool
    probabilities: bool | Literal["by_class"]
    top_k: int | None
    on_error: Literal["refuse", "per_item"]


class ServiceError(Exception):
    """An error response: `.status`, `.code`, `.details`, and for statuses 429 and 503 `.retry_after` in seconds."""

    retry_after: float | None = None

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(f"{message} ({status} {code})")
        self.status, self.code, self.details = status, code, dict(details)


def new_node(node: NodeLike, features: Features | None = None, neighbors: Nodes = ()) -> dict[str, Any]:
    """Describes a node that is not in the graph.

    Args:
        node: an id of the caller's choice, which the response repeats.
        features: all features (a list, or a row of an array); only those that are not zero (a mapping from index to value,
            a sparse row of scipy, or {"indices": [...], "values": [...]}); or a mapping from name to value (a number, bool,
            string or date, or None for a missing value), if the model has names (`Client.features`). None: every feature is
            missing, so the model must have fill values for all, or features that are computed from the edges.
        neighbors: ids of known nodes, in a list.

    Raises:
        ValueError: more than one row of features.
        TypeError: features that are not numbers, or neighbours that are not a list.
    """
    fields = {} if features is None else {"features": _features(features)}
    return {"id": node, **fields, "neighbors": list(_ids("neighbors", neighbors))}


def add_node(node: NodeLike, features: Features | None = None, neighbors: Nodes = (), label: Any = None) -> dict[str, Any]:
    """The operation that adds a node to the graph. `features` as for `new_node`, `label` as in docs/live_graph.md."""
    return {"op": "add_node", **new_node(node, features, neighbors), "label": label}


def set_features(node: NodeLike, features: Features) -> dict[str, Any]:
    """The operation that replaces the features of a node of the graph. `features` as for `new_node`."""
    return {"op": "set_features", "id": node, "features": _features(features)}


def _features(features: Any) -> Any:
    if hasattr(features, "tocoo") or (hasattr(features, "shape") and len(features.shape) > 1):
        if len(features.shape) > 1 and features.shape[0] != 1:
            raise ValueError(f"features have shape {tuple(features.shape)}, expected one row per new node")
        if hasattr(features, "tocoo"):
            entries = features.tocoo()
            return {"indices": entries.col.tolist(), "values": entries.data.astype(float).tolist()}
        features = features[0]
    if not isinstance(features, Mapping):
        try:
            return [float(value) for value in features]
        except (TypeError, ValueError):
            expected = "one row of numbers, or a mapping from names to values"
            raise TypeError(f"features are {reprlib.repr(features)}, expected {expected}") from None
    if any(isinstance(name, str) for name in features):  # by name, or the form of the HTTP interface
        return dict(features)
    return {"indices": [int(index) for index in features], "values": [float(value) for value in features.values()]}


def _ids(name: str, ids: Nodes) -> Nodes:
    """Raises TypeError for a string, whose letters are not ids, and for a number."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"{name} are {ids!r}, expected a list of ids: [{ids!r}]")
    return ids


_RETRIED_ERRORS = (ServiceError, httpx.NetworkError, httpx.RemoteProtocolError)
"""A restarting worker refuses or closes connections. Timeouts are not retried."""


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
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the address {url!r} does not begin with http:// or https://, expected e.g. http://{url}")
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http = self._http_class(base_url=url, headers=headers, timeout=timeout)
        self._retries, self._longest_wait = retries, longest_wait

    def _predict_request(self, nodes: Nodes, new_nodes: NewNodes, options: PredictOptions) -> httpx.Request:
        return self._post("/predict", {"nodes": _ids("nodes", nodes), "new_nodes": new_nodes, **options}, "*/*")

    def _embed_request(self, nodes: Nodes, new_nodes: NewNodes, options: EmbedOptions) -> httpx.Request:
        return self._post("/embed", {"nodes": _ids("nodes", nodes), "new_nodes": new_nodes, **options}, "application/x-npy")

    def _explain_request(self, node: NodeLike | Mapping[str, Any], top: int | None) -> httpx.Request:
        subject = {"new_node": node} if isinstance(node, Mapping) else {"node": node}
        return self._post("/explain", subject | ({} if top is None else {"top": top}), "*/*")

    def _similar_request(self, nodes: Nodes, new_nodes: NewNodes, k: int) -> httpx.Request:
        return self._post("/similar", {"nodes": _ids("nodes", nodes), "new_nodes": new_nodes, "k": k}, "*/*")

    def _map_request(self, limit: int | None) -> httpx.Request:
        return self._http.build_request("GET", "/map", params=None if limit is None else {"limit": limit})

    def _get(self, path: str) -> httpx.Request:
        return self._http.build_request("GET", path)

    def _nodes_request(self, start: int, limit: int | None) -> httpx.Request:
        params = {"start": start} if limit is None else {"start": start, "limit": limit}
        return self._http.build_request("GET", "/nodes", params=params)

    def _node_request(self, node: NodeLike, limit: int | None, folder: str = "/nodes") -> httpx.Request:
        path = quote(str(node), safe="").replace(".", "%2E")  # `..` in a path means its parent
        return self._http.build_request("GET", f"{folder}/{path}", params=None if limit is None else {"limit": limit})

    def _change_request(self, operations: Operations, upsert: bool, idempotency_key: str | None) -> httpx.Request:
        key = idempotency_key or secrets.token_hex(16)
        body = {"operations": operations, "upsert": upsert}
        return self._post("/graph", body, "*/*", {"idempotency-key": key})

    def _post(
        self, path: str, body: dict[str, Any], accept: str, more_headers: Mapping[str, str] | None = None
    ) -> httpx.Request:
        content = orjson.dumps(body, default=_to_json_type, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"content-type": "application/json", "accept": accept, **(more_headers or {})}
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
    """Methods raise ServiceError for an error response, and `httpx.TransportError` if there is no response."""

    _http: httpx.Client
    _http_class = httpx.Client

    def predict(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[PredictOptions]) -> PredictAnswer:
        """Predictions for known nodes, then for new nodes (made by `new_node`), in their order."""
        return PredictAnswer.model_validate_json(self._send(self._predict_request(nodes, new_nodes, options)))

    def embed(self, nodes: Nodes = (), new_nodes: NewNodes = (), **options: Unpack[EmbedOptions]) -> NDArray[np.float32]:
        """One row per node, in the order of `predict`."""
        return _read_array(self._send(self._embed_request(nodes, new_nodes, options)))

    def explain(self, node: NodeLike | Mapping[str, Any], top: int | None = None) -> ExplainAnswer:
        """Why a known or new node (made by `new_node`) has its answer: the `top` (default 10) neighbours and features."""
        return ExplainAnswer.model_validate_json(self._send(self._explain_request(node, top)))

    def similar(self, nodes: Nodes = (), new_nodes: NewNodes = (), k: int = 10) -> SimilarAnswer:
        """For each known node, then for each new node, the k known nodes with the most similar embeddings."""
        return SimilarAnswer.model_validate_json(self._send(self._similar_request(nodes, new_nodes, k)))

    def map(self, limit: int | None = None) -> MapAnswer:
        """The nodes in two dimensions: all, or `limit` (default 100,000) evenly spaced ones if there are more."""
        return MapAnswer.model_validate_json(self._send(self._map_request(limit)))

    def node(self, node: NodeLike, limit: int | None = None) -> NodeAnswer:
        """A node of the graph, with at most `limit` (default 100) of its neighbours."""
        return NodeAnswer.model_validate_json(self._send(self._node_request(node, limit)))

    def nodes(self, start: int = 0, limit: int | None = None) -> NodesAnswer:
        """A part of the nodes, in the order of the graph. Continue with `start=answer.next`, until it is None."""
        return NodesAnswer.model_validate_json(self._send(self._nodes_request(start, limit)))

    def classes(self) -> ClassesAnswer:
        """The classes by their numbers."""
        return ClassesAnswer.model_validate_json(self._send(self._get("/classes")))

    def features(self) -> FeaturesAnswer:
        """The columns that `new_node` may name: their kinds, categories and fill values."""
        return FeaturesAnswer.model_validate_json(self._send(self._get("/features")))

    def models(self) -> ModelsAnswer:
        """The served version and all versions of the model."""
        return ModelsAnswer.model_validate_json(self._send(self._get("/models")))

    def change_graph(
        self, operations: Operations, *, upsert: bool = False, idempotency_key: str | None = None
    ) -> GraphChanged:
        """Changes the graph: all operations or none, in order. The key of the client must be a write key.

        Args:
            upsert: adding what exists is an update, and removing what does not exist has no effect.
            idempotency_key: needed if the caller may send the same change again. By default every call has a new key, which
                makes only the retries of the client itself safe.
        """
        return GraphChanged.model_validate_json(self._send(self._change_request(operations, upsert, idempotency_key)))

    def graph(self) -> GraphAnswer:
        """The state of the graph: its last change, its size, its log."""
        return GraphAnswer.model_validate_json(self._send(self._get("/graph")))

    def drift(self) -> DriftAnswer:
        """The difference of requests and of the live graph from the training graph."""
        return DriftAnswer.model_validate_json(self._send(self._get("/drift")))

    def graph_node(self, node: NodeLike, limit: int | None = None) -> NodeAnswer:
        """The same answer as `node`, by the route /graph/nodes."""
        return NodeAnswer.model_validate_json(self._send(self._node_request(node, limit, "/graph/nodes")))

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

    async def explain(self, node: NodeLike | Mapping[str, Any], top: int | None = None) -> ExplainAnswer:
        return ExplainAnswer.model_validate_json(await self._send(self._explain_request(node, top)))

    async def similar(self, nodes: Nodes = (), new_nodes: NewNodes = (), k: int = 10) -> SimilarAnswer:
        return SimilarAnswer.model_validate_json(await self._send(self._similar_request(nodes, new_nodes, k)))

    async def map(self, limit: int | None = None) -> MapAnswer:
        return MapAnswer.model_validate_json(await self._send(self._map_request(limit)))

    async def node(self, node: NodeLike, limit: int | None = None) -> NodeAnswer:
        return NodeAnswer.model_validate_json(await self._send(self._node_request(node, limit)))

    async def nodes(self, start: int = 0, limit: int | None = None) -> NodesAnswer:
        return NodesAnswer.model_validate_json(await self._send(self._nodes_request(start, limit)))

    async def classes(self) -> ClassesAnswer:
        return ClassesAnswer.model_validate_json(await self._send(self._get("/classes")))

    async def features(self) -> FeaturesAnswer:
        return FeaturesAnswer.model_validate_json(await self._send(self._get("/features")))

    async def models(self) -> ModelsAnswer:
        return ModelsAnswer.model_validate_json(await self._send(self._get("/models")))

    async def change_graph(
        self, operations: Operations, *, upsert: bool = False, idempotency_key: str | None = None
    ) -> GraphChanged:
        request = self._change_request(operations, upsert, idempotency_key)
        return GraphChanged.model_validate_json(await self._send(request))

    async def graph(self) -> GraphAnswer:
        return GraphAnswer.model_validate_json(await self._send(self._get("/graph")))

    async def drift(self) -> DriftAnswer:
        return DriftAnswer.model_validate_json(await self._send(self._get("/drift")))

    async def graph_node(self, node: NodeLike, limit: int | None = None) -> NodeAnswer:
        return NodeAnswer.model_validate_json(await self._send(self._node_request(node, limit, "/graph/nodes")))

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
    """The body of a successful response. Raises ServiceError for any other."""
    if response.is_success:
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
