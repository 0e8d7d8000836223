"""Reads a TOML settings file and remembers on which line each key stands."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultrafast.core.errors import ConfigError

_HEADER = re.compile(r"^\s*\[\s*([A-Za-z0-9_.\- \"']+?)\s*\]\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"^\s*([A-Za-z0-9_.\-\"' ]+?)\s*=")
_INLINE_KEY = re.compile(r"[{,]\s*([A-Za-z0-9_\-]+)\s*=")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A parsed file: values by dotted key, and the line (from 1) of each."""

    path: Path
    values: dict[str, Any]
    lines: dict[str, int]

    def where(self, dotted: str) -> str:
        """`FILE line N` of a key, or the file alone when the line is not known."""
        line = self.lines.get(dotted)
        return f"{self.path} line {line}" if line else str(self.path)


def read_toml(path: Path) -> TomlFile:
    """Read a settings file.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or is not TOML; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"Cannot read the settings file {path}: {error.strerror}.",
            hint="Check the path given with --config and its permissions.",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The settings file {path} is not UTF-8 text.", hint="Save it as UTF-8.") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", hint=_syntax_hint(text, str(error))) from error
    return TomlFile(path, flatten(document), _find_lines(text))


def flatten(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one dict of dotted keys; an empty table vanishes."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _find_lines(text: str) -> dict[str, int]:
    """Line of each key. Good for the plain files people write; a key inside a multi-line string at worst names a wrong line."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _clean(header[1]) + "."
        elif assignment := _ASSIGNMENT.match(line):
            key = table + _clean(assignment[1])
            lines.setdefault(key, number)
            for inner in _INLINE_KEY.findall(line[assignment.end() :]):
                lines.setdefault(f"{key}.{inner}", number)
    return lines


def _clean(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _syntax_hint(text: str, message: str) -> str:
    found = re.search(r"at line (\d+)", message)
    if found and int(found[1]) <= len(text.splitlines()):
        line = text.splitlines()[int(found[1]) - 1].strip()
        return f"Look at line {found[1]}: {line!r}. Text values need quotes, booleans are true or false."
    return "Text values need quotes, booleans are true or false."
