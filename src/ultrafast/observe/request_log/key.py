"""The key under which beginnings of prompts are named: random, made once, beside the log, for its owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ultrafast.core.errors import ConfigError
from ultrafast.kv.names import KEY_BYTES


def key_path(log: Path) -> Path:
    """Where the key of a log is."""
    return log.with_name(log.name + ".key")


def read_key(path: Path) -> bytes:
    """Read a key.

    Raises:
        ConfigError: it is not there, or no key.
    """
    try:
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"The key of the request log cannot be read: {error}.", hint="It lies beside the log, as LOG.key."
        ) from error
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} is no key of a request log.", hint="Delete it: a new one is made, and old names mean nothing.")
    return key


def make_key(path: Path) -> bytes:
    """Read the key, or make it when there is none yet.

    Raises:
        ConfigError: it can be neither read nor made.
    """
    if path.exists():
        return read_key(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(
            f"request_log.path: the key {path} cannot be written: {error}.",
            param="request_log.path",
            hint="Choose a folder that the server may write to.",
        ) from error
    key = secrets.token_bytes(KEY_BYTES)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    return key
