"""Who may ask: keys for predictions, a token for /admin. Compared in constant time, never logged."""

from __future__ import annotations

import hashlib
import hmac

from service.errors import Refusal
from service.settings import Settings

_CHALLENGE = {"www-authenticate": "Bearer"}


class Security:
    def __init__(self, settings: Settings) -> None:
        # Digests have one length, so that not even a key's length can be told from the time a comparison takes.
        self._keys = [_digest(key.encode()) for key in settings.api_keys]
        self._admin = None if settings.admin_token is None else _digest(settings.admin_token.encode())

    def check(self, path: str, authorization: bytes | None) -> None:
        """Raises Refusal: 401 where a key is missing, 403 where it is wrong, 404 where /admin is off."""
        if path.startswith("/admin"):
            if self._admin is None:
                raise Refusal("not_found", "there is nothing here: the admin endpoints are off (SGF_ADMIN_TOKEN)")
            self._compare(authorization, [self._admin])
        elif self._keys and path.startswith(("/predict", "/embed", "/models")):
            self._compare(authorization, self._keys)

    def _compare(self, authorization: bytes | None, expected: list[bytes]) -> None:
        if authorization is None or not authorization.lower().startswith(b"bearer "):
            raise Refusal("unauthorized", "a key is needed: send Authorization: Bearer ...", headers=_CHALLENGE)
        given = _digest(authorization[7:].strip())
        if not sum(hmac.compare_digest(given, one) for one in expected):  # every one is compared, whichever fits
            raise Refusal("forbidden", "this key may not do that")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
