"""Authorization: API keys for all paths except the public ones, write keys for POST /graph, the admin token for /admin.

Keys are never logged.
"""

from __future__ import annotations

import hashlib
import hmac

from service.errors import Refusal
from service.http.errors import HttpRefusal
from service.settings import Settings

_CHALLENGE = {"www-authenticate": "Bearer"}
PUBLIC = {"/", "/health/live", "/health/ready", "/metrics", "/docs", "/docs/oauth2-redirect", "/openapi.json"}
CHANGES = "/graph"
"""The route whose POST changes the graph."""
PUBLIC_FOLDERS = ("/docs-assets/", "/console/")


class Security:
    """A path needs a key unless it is listed as public, so that a new route is not public by mistake."""

    def __init__(self, settings: Settings) -> None:
        # Digests have one length, so that the time of a comparison does not reveal the length of a key.
        self._write_keys = [_digest(key.encode()) for key in settings.write_keys]
        self._keys = [*map(_digest, map(str.encode, settings.api_keys)), *(self._write_keys if settings.api_keys else ())]
        self._admin = None if settings.admin_token is None else _digest(settings.admin_token.encode())

    def check(self, path: str, authorization: bytes | None, method: str = "GET") -> str | None:
        """Returns the first 8 hex digits of the key's hash, for the log; None if the path needs no key.

        Raises Refusal: 401 where a key is missing, 403 where it is wrong, 404 where /admin or POST /graph is off.
        """
        if path.startswith("/admin"):
            if self._admin is None:
                raise Refusal("not_found", "the admin endpoints are off: SGF_ADMIN_TOKEN is not set")
            return self._compare(authorization, [self._admin])
        if path == CHANGES and method == "POST":
            if not self._write_keys:
                raise Refusal("not_found", "the graph cannot be changed here: SGF_WRITE_KEYS is not set")
            return self._compare(authorization, self._write_keys)
        if self._keys and path not in PUBLIC and not path.startswith(PUBLIC_FOLDERS):
            return self._compare(authorization, self._keys)
        return None

    def _compare(self, authorization: bytes | None, expected: list[bytes]) -> str:
        if authorization is None or not authorization.lower().startswith(b"bearer "):
            raise HttpRefusal("unauthorized", "a key is needed: send Authorization: Bearer ...", headers=_CHALLENGE)
        digest = _digest(authorization[7:].strip())
        # `sum` compares all keys, so that the duration does not reveal which one matched.
        if not sum(hmac.compare_digest(digest, other) for other in expected):
            raise Refusal("forbidden", "the key is not valid for this path")
        return digest.hex()[:8]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
