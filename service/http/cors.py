"""Cross-origin requests: which pages of other origins may call the service from a browser (SGF_CORS_ORIGINS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.errors import Refusal
from service.http.reply import Reply

EXPOSED = "x-request-id, x-sgf-cache, x-sgf-model, x-sgf-version, x-sgf-snapshot, x-sgf-sequence, server-timing, retry-after"
PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST",
    "access-control-allow-headers": "authorization, content-type, content-encoding, idempotency-key, last-event-id, "
    "x-request-id",
    "access-control-max-age": "600",
}
HeaderPairs = list[tuple[bytes, bytes]]


class Cors:
    """Adds headers to every response, error responses included: without them a page cannot read the reason of a refusal."""

    def __init__(self, origins: Sequence[str]) -> None:
        self.is_on, self._allows_all = bool(origins), "*" in origins
        self._pairs = {origin.encode(): _pairs(origin) for origin in origins}
        # A cache between the service and the browser must not give one origin the response for another.
        self._unlisted: HeaderPairs = [(b"vary", b"origin")] if self.is_on else []

    def pairs(self, origin: bytes | None) -> HeaderPairs:
        """The headers of a response to a page of this origin."""
        return self._pairs.get(b"*" if self._allows_all else origin or b"", self._unlisted)

    def answer_preflight(self, headers: Mapping[bytes, bytes]) -> Reply | None:
        """The reply by which a browser learns what a page may send; None for any other OPTIONS request.

        Raises Refusal if no page of this origin may call the service.
        """
        origin = headers.get(b"origin")
        if not self.is_on or origin is None or b"access-control-request-method" not in headers:
            return None
        if self.pairs(origin) is self._unlisted:
            name = repr(origin.decode("latin-1"))
            raise Refusal("forbidden", f"pages of the origin {name} may not call this service (SGF_CORS_ORIGINS)")
        return Reply(200, b"", "text/plain", PREFLIGHT)


def _pairs(origin: str) -> HeaderPairs:
    headers = {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": EXPOSED,
        "timing-allow-origin": origin,
    }
    if origin != "*":  # browsers do not accept credentials together with `*`
        headers |= {"access-control-allow-credentials": "true", "vary": "origin"}
    return [(name.encode(), value.encode()) for name, value in headers.items()]
