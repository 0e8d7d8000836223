"""API keys: from a file, from the environment, never printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ultrafast.core.errors import ConfigError

API_KEY_VARIABLE = "ULTRAFAST_API_KEY"
MIN_KEY_CHARACTERS = 8
_ADMIN = "admin"


class ApiKey(NamedTuple):
    """A key that is accepted. `name` only serves logs; `is_admin`: it may do what concerns all keys."""

    name: str
    key: str
    is_admin: bool = False


def admin_key(keys: Sequence[ApiKey]) -> str | None:
    """Return the key that commands of the operator send: the first that may administer, else the first; None without keys."""
    return next((one.key for one in keys if one.is_admin), keys[0].key if keys else None)


def read_api_keys(path: str | None, environ: Mapping[str, str]) -> tuple[ApiKey, ...]:
    """The keys of the file and of `ULTRAFAST_API_KEY`; none at all means that anybody may call.

    The file has one `key`, `name key` or `name key admin` per line; empty lines and lines that start with `#` are skipped.

    Raises:
        ConfigError: the file cannot be read, holds no key (which would silently open the server), or has a bad line.
    """
    keys = _read_file(Path(path).expanduser()) if path else []
    if from_environment := environ.get(API_KEY_VARIABLE, "").strip():
        keys.append(_parse(from_environment, API_KEY_VARIABLE, API_KEY_VARIABLE))
    return tuple(keys)


def _read_file(path: Path) -> list[ApiKey]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _error(f"Cannot read the API key file {path}: {reason}.", "Check the path and its permissions.") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    keys = [
        _parse(line, f"line {number}", f"{path} line {number}") for number, line in lines if line and not line.startswith("#")
    ]
    if not keys:
        raise _error(f"The API key file {path} holds no key.", "Put one key on each line, or leave the setting out.")
    return keys


def _parse(line: str, default_name: str, where: str) -> ApiKey:
    words = line.split()
    is_admin = len(words) == 3 and words[-1] == _ADMIN
    if is_admin:
        words.pop()
    if len(words) > 2 or len(words[-1]) < MIN_KEY_CHARACTERS or not words[-1].isascii():
        raise _error(
            f"{where}: wants `KEY`, `NAME KEY` or `NAME KEY admin`, a key of at least {MIN_KEY_CHARACTERS} ASCII characters.",
            "Make a key with: openssl rand -hex 24",
        )
    name, key = words if len(words) == 2 else (default_name, words[0])
    return ApiKey(name, key, is_admin)


def _error(message: str, hint: str) -> ConfigError:
    return ConfigError(message, param="server.api_key_file", hint=hint)
