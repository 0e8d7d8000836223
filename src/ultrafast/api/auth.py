"""API keys: who may call. Keys are held as hashes and compared in constant time; they never reach a log or an answer."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from ultrafast.api.errors import ApiError
from ultrafast.core.errors import ConfigError

MIN_KEY_CHARS = 8


class ApiKeys:
    """A set of accepted keys; empty = everybody may call.

    Args:
        keys: (name, key) pairs; the name only serves logs.
    """

    def __init__(self, keys: Iterable[tuple[str, str]] = ()) -> None:
        self._digests = [(name, _digest(key.encode())) for name, key in keys]

    @classmethod
    def from_file(cls, path: str | Path) -> ApiKeys:
        """Read a file with one `key` or `name key` per line; empty lines and lines that start with `#` are skipped.

        Raises:
            ConfigError: the file cannot be read, holds no key, or a key is shorter than 8 characters.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the API keys in {path}: {error}", param="server.api_key_file") from error
        keys = [_parse_line(line, number, path) for number, line in enumerate(text.splitlines(), 1) if _is_key_line(line)]
        if not keys:
            raise ConfigError(
                f"{path} holds no API key",
                param="server.api_key_file",
                hint="write one key per line, or unset server.api_key_file to let everybody in",
            )
        return cls(keys)

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


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refuse(message: str, code: str) -> ApiError:
    return ApiError(
        401, code, message, hint="send the header 'Authorization: Bearer YOUR_KEY'", headers=[(b"www-authenticate", b"Bearer")]
    )


def _is_key_line(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _parse_line(line: str, number: int, path: str | Path) -> tuple[str, str]:
    words = line.split()
    name, key = words if len(words) == 2 else (f"line {number}", words[0])
    if len(words) > 2 or len(key) < MIN_KEY_CHARS or not key.isascii():
        raise ConfigError(
            f"{path}, line {number}: expected `key` or `name key`, the key with at least {MIN_KEY_CHARS} ASCII characters",
            param="server.api_key_file",
        )
    return name, key
