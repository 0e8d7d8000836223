"""API keys: from a file, from the environment, never printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ultrafast.core.errors import ConfigError

API_KEY_VARIABLE = "ULTRAFAST_API_KEY"
MIN_KEY_CHARACTERS = 8


def read_api_keys(path: str | None, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, key) pairs out of the file and of `ULTRAFAST_API_KEY`; none at all means that anybody may call.

    The file has one `key` or `name key` per line; empty lines and lines that start with `#` are skipped. Names serve logs.

    Raises:
        ConfigError: the file cannot be read, holds no key (which would silently open the server), or has a bad line.
    """
    keys = _read_file(Path(path).expanduser()) if path else []
    if from_environment := environ.get(API_KEY_VARIABLE, "").strip():
        keys.append(_parse(from_environment, API_KEY_VARIABLE, API_KEY_VARIABLE))
    return tuple(keys)


def _read_file(path: Path) -> list[tuple[str, str]]:
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


def _parse(line: str, default_name: str, where: str) -> tuple[str, str]:
    words = line.split()
    if len(words) > 2 or len(words[-1]) < MIN_KEY_CHARACTERS or not words[-1].isascii():
        raise _error(
            f"{where}: expected `KEY` or `NAME KEY`, the key with at least {MIN_KEY_CHARACTERS} ASCII characters.",
            "Make a key with: openssl rand -hex 24",
        )
    return (words[0], words[1]) if len(words) == 2 else (default_name, words[0])


def _error(message: str, hint: str) -> ConfigError:
    return ConfigError(message, param="server.api_key_file", hint=hint)
