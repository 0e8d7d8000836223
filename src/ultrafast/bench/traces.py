"""Recorded traffic to replay: when, how long, what is shared. Reads four formats and tells them apart by their first line.

- Azure LLM inference traces (CSV): TIMESTAMP,ContextTokens,GeneratedTokens
- Mooncake (JSON Lines): timestamp in milliseconds, input_length, output_length, hash_ids of blocks of 512 tokens
- our server's request log (JSON Lines): times, lengths, tiers, and names of shared beginnings
- our own: a result of `ultrafast bench` (JSON Lines), replayed with its real lengths, tiers and sessions as single requests
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from ultrafast.bench.record_files import ResultFileError, read_run
from ultrafast.core.errors import UltrafastError
from ultrafast.observe.request_log.reader import RequestLogError, is_request_log, read_head, read_records
from ultrafast.observe.request_log.record import LogRecord

MOONCAKE_BLOCK_TOKENS = 512
_FORMATS = "Name an Azure CSV, a Mooncake JSONL, a result of `ultrafast bench` or a request log."


class TraceError(UltrafastError):
    """A trace file cannot be read."""

    code = "invalid_trace"


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One recorded request.

    Attributes:
        due_s: counts from the first one.
        blocks: names of shared pieces of the prompt, in order, of `num_block_tokens` each (the last one may be shorter).
    """

    due_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    tier: str | None = None
    blocks: tuple[int, ...] = ()
    num_block_tokens: int = MOONCAKE_BLOCK_TOKENS


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def read_trace(path: Path) -> list[TraceEntry]:
    """All entries by time; the first is due at 0.

    Raises:
        TraceError: unreadable, empty or of an unknown format; with the line at fault.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TraceError(f"{path} cannot be read: {reason}.", hint=_FORMATS) from error
    if not text.strip():
        raise TraceError(f"{path} holds no requests.", hint=_FORMATS)
    first = text.partition("\n")[0]
    if is_request_log(first):
        entries = _read_request_log(path)
    elif '"type":"run"' in first:
        entries = _read_own(path)
    elif first.lstrip().startswith("{"):
        entries = _read_mooncake(path, text)
    elif "TIMESTAMP" in first.upper():
        entries = _read_azure(path, text)
    else:
        raise _bad(path, 1, "the first line is neither a CSV head with TIMESTAMP nor JSON")
    if not entries:
        raise TraceError(f"{path} holds no requests.", hint="It has a head and nothing else; take another trace.")
    return _from_zero(entries)


def scale(entries: Sequence[TraceEntry], speed: float) -> list[TraceEntry]:
    """The same trace `speed` times as fast."""
    return [replace(entry, due_s=entry.due_s / speed) for entry in entries]


def _from_zero(entries: list[TraceEntry]) -> list[TraceEntry]:
    entries.sort(key=lambda entry: entry.due_s)
    start_s = entries[0].due_s
    return [
        replace(
            entry,
            due_s=entry.due_s - start_s,
            num_prompt_tokens=max(1, entry.num_prompt_tokens),
            num_output_tokens=max(1, entry.num_output_tokens),
        )
        for entry in entries
    ]


def _read_own(path: Path) -> list[TraceEntry]:
    try:
        run = read_run(path)
    except ResultFileError as error:
        raise TraceError(error.message, hint=error.hint) from error
    return [
        TraceEntry(
            request.scheduled_ns / 1e9,
            request.usage.num_prompt_tokens or request.num_asked_prompt_tokens or 1,
            request.usage.num_output_tokens or request.num_asked_output_tokens or 1,
            request.tier_requested,
        )
        for request in run.requests
    ]


def _read_request_log(path: Path) -> list[TraceEntry]:
    """Refused requests are traffic, too; what nobody knows of them, prompt or output, is as long as that of others, at P50."""
    records = list(_checked(path))
    typical_prompt = _median([record.prompt_tokens for record in records])
    typical_output = _median([record.output_tokens for record in records])
    blocks: dict[tuple[str, str], int] = {}
    num_block_tokens = read_head(path).block_tokens
    return [
        TraceEntry(
            record.arrival,
            record.prompt_tokens or typical_prompt,
            record.output_tokens or typical_output,
            record.tier,
            tuple(blocks.setdefault((record.space, name), len(blocks)) for name in record.prefix),
            num_block_tokens,
        )
        for record in records
    ]


def _median(lengths: list[int]) -> int:
    known = sorted(length for length in lengths if length)
    return known[len(known) // 2] if known else 1


def _checked(path: Path) -> Iterator[LogRecord]:
    try:
        yield from read_records(path)
    except RequestLogError as error:
        raise TraceError(error.message, hint=error.hint) from error


def _read_mooncake(path: Path, text: str) -> list[TraceEntry]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise _bad(path, number, str(error)) from error
        entries.append(TraceEntry(entry.timestamp / 1000, entry.input_length, entry.output_length, None, tuple(entry.hash_ids)))
    return entries


def _read_azure(path: Path, text: str) -> list[TraceEntry]:
    rows = csv.DictReader(text.splitlines())
    entries = []
    for number, row in enumerate(rows, start=2):
        fields = {(name or "").strip().lower(): value for name, value in row.items()}
        try:
            due_s = _azure_seconds(fields["timestamp"])
            entries.append(TraceEntry(due_s, int(fields["contexttokens"]), int(fields["generatedtokens"])))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise _bad(path, number, f"expected TIMESTAMP,ContextTokens,GeneratedTokens ({error})") from error
    return entries


def _azure_seconds(stamp: str) -> float:
    """Azure writes seven digits of a second; Python reads six."""
    whole, dot, fraction = stamp.strip().partition(".")
    zone = ""
    for sign in ("+", "Z"):
        if sign in fraction:
            cut = fraction.index(sign)
            fraction, zone = fraction[:cut], fraction[cut:]
    moment = datetime.fromisoformat(whole + (f".{fraction[:6]:0<6}" if dot else "") + zone)
    return (moment - datetime(2000, 1, 1, tzinfo=moment.tzinfo)).total_seconds()


def _bad(path: Path, line: int, reason: str) -> TraceError:
    return TraceError(f"{path}, line {line}: {reason}.", hint=_FORMATS)
