"""API keys: who may call, and who may do what concerns all callers.

Keys are held as hashes and compared in constant time; they never reach a log or an answer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from ultrafast.api.errors import ApiError
from ultrafast.config.api_keys import ApiKey


class ApiKeys:
    """A set of accepted keys; empty = everybody may call.

    Args:
        keys: `ApiKey`s, or (name, key) pairs; the name only serves logs.
    """

    def __init__(self, keys: Iterable[ApiKey | tuple[str, str]] = ()) -> None:
        given = [ApiKey(*key) for key in keys]
        self._digests = [(one.name, _digest(one.key.encode())) for one in given]
        self._admins = {_digest(one.key.encode()) for one in given if one.is_admin}
        if len({digest for _, digest in self._digests}) == 1:  # there is nobody else whom it could harm
            self._admins = {self._digests[0][1]}

    @property
    def is_open(self) -> bool:
        """Nobody needs a key."""
        return not self._digests

    def check(self, authorization: bytes | None) -> str | None:
        """Return the name of the key in an `Authorization` header; None when no key is needed.

        Raises:
            ApiError: 401, no key or one that is not accepted.
        """
        if self.is_open:
            return None
        scheme, _, key = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise _refuse("This server needs an API key.", "missing_api_key")
        digest = _digest(key.strip())
        found: str | None = None
        # Every entry is compared, whatever was found before: the time taken says nothing about the keys.
        for name, accepted in self._digests:
            if hmac.compare_digest(digest, accepted):
                found = name
        if found is None:
            raise _refuse("The API key is not accepted here.", "invalid_api_key")
        return found

    def check_admin(self, authorization: bytes | None) -> None:
        """Refuse who may call (`check`) and yet not do what concerns the others.

        Raises:
            ApiError: 403, there are several keys and this one is not marked.
        """
        _, _, key = (authorization or b"").partition(b" ")
        if not self.is_open and _digest(key.strip()) not in self._admins:
            raise ApiError(
                403,
                "admin_key_required",
                "This concerns the callers with other API keys too, and needs an admin key.",
                hint="mark a key in server.api_key_file: NAME KEY admin",
            )

    def tenant(self, authorization: bytes | None) -> str:
        """Return who shares KV with this caller: a name for the key that says nothing about it; empty when no key is needed."""
        if self.is_open:
            return ""
        _, _, key = (authorization or b"").partition(b" ")
        return hashlib.sha256(b"tenant " + _digest(key.strip())).hexdigest()[:32]


def tenant_of(key: str) -> str:
    """Return what `ApiKeys.tenant` returns for callers with this key."""
    return ApiKeys([("", key)]).tenant(b"Bearer " + key.encode())


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refuse(message: str, code: str) -> ApiError:
    return ApiError(
        401, code, message, hint="send the header 'Authorization: Bearer YOUR_KEY'", headers=[(b"www-authenticate", b"Bearer")]
    )
