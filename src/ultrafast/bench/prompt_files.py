"""A user's own prompts: JSON Lines with `prompt` or `messages` (and `max_tokens`), or plain text with one prompt per line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ultrafast.core.errors import UltrafastError

_HINT = "Name a text file with one prompt a line, or JSON Lines with `prompt` or `messages`."


class PromptFileError(UltrafastError):
    """A prompt file cannot be read."""

    code = "invalid_prompt_file"


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A prompt as messages; `num_output_tokens` only if the file gives one."""

    messages: tuple[dict[str, Any], ...]
    num_output_tokens: int | None = None


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    output_len: int | None = None


def read_prompts(path: Path) -> list[FilePrompt]:
    """All prompts, in order.

    Raises:
        PromptFileError: with the line at fault.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PromptFileError(f"{path} cannot be read: {reason}.", hint=_HINT) from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise PromptFileError(f"{path} holds no prompts.", hint=_HINT)
    if path.suffix.lower() in (".jsonl", ".json", ".ndjson"):
        return [_read_line(path, number, line) for number, line in numbered]
    return [FilePrompt(({"role": "user", "content": line},)) for _, line in numbered]


def _read_line(path: Path, number: int, line: str) -> FilePrompt:
    hint = 'Each line is {"prompt": "..."} or {"messages": [...]}, with "max_tokens" if you like.'
    try:
        entry = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise PromptFileError(f"{path}, line {number}: {error}.", hint=hint) from error
    messages = entry.messages or ([{"role": "user", "content": entry.prompt}] if entry.prompt else None)
    if not messages:
        raise PromptFileError(f"{path}, line {number} has neither prompt nor messages.", hint=hint)
    return FilePrompt(tuple(messages), entry.max_tokens or entry.output_len)
