"""API keys: from a file, from the environment, never printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ultrafast.core.errors import ConfigError

API_KEY_VARIABLE = "ULTRAFAST_API_KEY"
MIN_KEY_CHARACTERS = 8


def read_api_keys(path: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of the file (one per line, `#` starts a comment line) and the one in `ULTRAFAST_API_KEY`; none means open to all.

    Raises:
        ConfigError: the file cannot be read, holds no key (which would silently open the server), or a key is too short.
    """
    keys = _read_file(Path(path).expanduser()) if path else []
    if environ.get(API_KEY_VARIABLE, "").strip():
        keys.append(environ[API_KEY_VARIABLE].strip())
    if any(len(key) < MIN_KEY_CHARACTERS or not key.isascii() or " " in key for key in keys):
        raise ConfigError(
            f"An API key is shorter than {MIN_KEY_CHARACTERS} characters, or contains spaces or characters beyond ASCII.",
            param="server.api_key_file",
            hint="Make one with: openssl rand -hex 24",
        )
    return tuple(dict.fromkeys(keys))


def _read_file(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"Cannot read the API key file {path}: {reason}.",
            param="server.api_key_file",
            hint="Check the path and its permissions.",
        ) from error
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(
            f"The API key file {path} holds no key.",
            param="server.api_key_file",
            hint="Put one key on each line, or leave the setting out.",
        )
    return keys
