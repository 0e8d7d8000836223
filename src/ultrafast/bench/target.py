"""The server under test: who it is, what it accepts, how its tokenizer counts. Found out before anything is measured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ultrafast.bench.client import BenchClient
from ultrafast.bench.dialect import Dialect, build_body
from ultrafast.bench.http1 import ConnectionPool, encode_request
from ultrafast.bench.records import ErrorClass, Outcome, RequestRecord
from ultrafast.bench.wire import read_error_body
from ultrafast.bench.words import Calibration, random_text
from ultrafast.core.errors import UltrafastError

_PROBE_TEXT, _PROBE_TOKENS = "Count from one to twenty.", 8
_NUM_TRIES, _MAX_WAIT_S = 5, 3.0
_FEW_WORDS, _MANY_WORDS = 40, 240
_PREFLIGHT_TIMEOUT_S = 120.0
_MAX_FACT_CHARS = 200
"""Longer ones are chat templates and the like."""


class TargetError(UltrafastError):
    """The server cannot be measured as asked: it does not answer, refuses the key, or knows no such model."""

    code = "server_unusable"


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answered.

    Attributes:
        facts: what it tells about itself, as flat text: `server.*`.
        is_calibrated: `calibration` was measured; else prompt lengths are guesses.
    """

    model: str
    dialect: Dialect
    calibration: Calibration = field(default_factory=Calibration)
    is_calibrated: bool = False
    facts: dict[str, str] = field(default_factory=dict)


async def find_target(client: BenchClient, model: str | None, dialect: Dialect, extra: dict[str, Any], seed: int) -> Target:
    """Ask for the models, then find the fullest dialect that works, then measure the tokenizer.

    Raises:
        TargetError: with the server's own words where it has any.
    """
    listed, facts = await _ask_models(client, model)
    if facts.get("server.owned_by") != "ultrafast":  # ours tells all of it in the entry of the model
        facts |= await _ask_flags(client)
    chosen = model or listed
    if chosen is None:
        raise TargetError("The server names no model at /v1/models.", hint="Give one with --model.")
    target = await _find_dialect(client, Target(chosen, dialect, facts=facts), extra)
    return await _calibrate(client, target, extra, seed)


async def fetch(
    pool: ConnectionPool, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a GET, or of a POST with a JSON `body`. Raises OSError when there is no answer."""
    collector = _Collector(asyncio.get_running_loop().create_future())
    connection, _ = await pool.take()
    try:
        async with asyncio.timeout(_PREFLIGHT_TIMEOUT_S):
            method = "GET" if body is None else "POST"
            connection.send(encode_request(method, pool.address, path, headers, body), collector)
            return await collector.done
    finally:
        pool.give_back(connection)


class _Collector:
    """A `Sink` for one small answer."""

    def __init__(self, done: asyncio.Future[tuple[int, bytes, dict[str, str]]]) -> None:
        self.done = done
        self._status = 0
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []

    def on_head(self, status: int, headers: dict[str, str], stamp_ns: int) -> None:  # noqa: ARG002 - a Sink
        self._status, self._headers = status, headers

    def on_body(self, piece: bytes, stamp_ns: int) -> None:  # noqa: ARG002 - a Sink
        self._pieces.append(piece)

    def on_end(self, stamp_ns: int) -> None:  # noqa: ARG002 - a Sink
        if not self.done.done():
            self.done.set_result((self._status, b"".join(self._pieces), self._headers))

    def on_broken(self, reason: str, stamp_ns: int) -> None:  # noqa: ARG002 - a Sink
        if not self.done.done():
            self.done.set_exception(ConnectionError(reason))


async def _ask_models(client: BenchClient, wanted: str | None) -> tuple[str | None, dict[str, str]]:
    address = client.pool.address
    try:
        status, body, headers = await fetch(client.pool, "/v1/models", client.headers)
    except (OSError, TimeoutError) as error:
        hint = "Is the server running? Start one with `ultrafast serve`, or name it with --url."
        raise TargetError(f"No answer from {address}: {error}.", hint=hint) from error
    if status in (401, 403):
        raise TargetError(
            f"{address} refuses the key (HTTP {status}).", hint="Give one with --api-key-file or ULTRAFAST_API_KEY."
        )
    if status != 200 and wanted is None:
        message = f"{address}/v1/models answers HTTP {status}: {read_error_body(body)[0]}"
        raise TargetError(message, hint="Wait until the server is ready, or name the model with --model.")
    facts = {"server.software": headers["server"]} if "server" in headers else {}
    try:
        models = msgspec.json.decode(body)["data"] if status == 200 else []
        entries = [entry for entry in models if isinstance(entry, dict)]
    except (msgspec.DecodeError, KeyError, TypeError):
        entries = []
    mine = next((entry for entry in entries if wanted in (None, entry.get("id"))), None)
    if entries and mine is None:
        names = ", ".join(str(entry.get("id")) for entry in entries[:8])
        raise TargetError(f"The server has no model {wanted!r}.", hint=f"It has: {names}.")
    if mine is not None:
        facts |= _flatten(mine)
    return (str(mine["id"]) if mine and mine.get("id") else None), facts


async def _ask_flags(client: BenchClient) -> dict[str, str]:
    """Build and flags, from the pages where other servers tell them: vLLM's /version, llama-server's /props."""
    facts: dict[str, str] = {}
    for path in ("/version", "/props"):
        try:
            status, body, _ = await fetch(client.pool, path, client.headers)
            told = msgspec.json.decode(body, type=dict[str, Any]) if status == 200 else {}
        except (OSError, TimeoutError, msgspec.DecodeError):
            continue
        for name, value in told.items():
            inner = value.items() if isinstance(value, dict) else [(None, value)]
            facts |= {
                f"server.{key or name}": str(one)
                for key, one in inner
                if isinstance(one, (str, int, float, bool)) and len(str(one)) <= _MAX_FACT_CHARS
            }
    return facts


def _flatten(model: dict[str, Any]) -> dict[str, str]:
    """The scalars of a model entry; our own extension (`ultrafast`) one level deep."""
    facts: dict[str, str] = {}
    for name, value in model.items():
        if isinstance(value, dict) and name in ("ultrafast", "meta"):
            facts |= {f"server.{key}": str(inner) for key, inner in value.items() if isinstance(inner, (str, int, float, bool))}
        elif isinstance(value, (str, int, float, bool)) and name not in ("object", "created"):
            facts[f"server.{'model' if name == 'id' else name}"] = str(value)
    return facts


async def _find_dialect(client: BenchClient, target: Target, extra: dict[str, Any]) -> Target:
    record = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=0)
    for dialect in target.dialect.plainer():
        record = await _probe_patiently(client, replace(target, dialect=dialect), _PROBE_TEXT, _PROBE_TOKENS, extra)
        if record.is_ok or (record.failure and record.failure.kind is ErrorClass.EMPTY):
            return replace(target, dialect=dialect)
        if record.failure is None or record.failure.kind is not ErrorClass.CLIENT_ERROR:
            break
        if record.failure.status not in (400, 422):
            break
    assert record.failure is not None, "a probe that is not ok has failed"
    status = f" (HTTP {record.failure.status})" if record.failure.status else ""
    raise TargetError(
        f"A first request failed{status}: {record.failure.message}", hint="The bench needs a streamed answer to start."
    )


async def _calibrate(client: BenchClient, target: Target, extra: dict[str, Any], seed: int) -> Target:
    """Two prompts of known numbers of words; the server's counts give the line. Random words each time, so no cache helps."""
    counts = []
    for number, num_words in enumerate((_FEW_WORDS, _MANY_WORDS)):
        record = await _probe_patiently(client, target, random_text(num_words, seed, 0, number), 1, extra)
        counts.append((num_words, record.usage.num_prompt_tokens))
    (few, few_tokens), (many, many_tokens) = counts
    if few_tokens is None or many_tokens is None or many_tokens <= few_tokens:
        return target
    calibration = Calibration.through((few, few_tokens), (many, many_tokens))
    facts = target.facts | {
        "server.tokens_per_word": f"{calibration.tokens_per_word:.4f}",
        "server.template_tokens": f"{calibration.num_fixed_tokens:.0f}",
    }
    return replace(target, calibration=calibration, is_calibrated=True, facts=facts)


async def _probe_patiently(
    client: BenchClient, target: Target, text: str, num_tokens: int, extra: dict[str, Any]
) -> RequestRecord:
    """A probe that comes back a few times when the server is busy: the preflight is no measurement."""
    for _ in range(_NUM_TRIES - 1):
        record = await _probe(client, target, text, num_tokens, extra)
        if record.failure is None or record.failure.kind is not ErrorClass.OVERLOADED:
            return record
        await asyncio.sleep(min(_MAX_WAIT_S, record.failure.retry_after_s or 0.5))
    return await _probe(client, target, text, num_tokens, extra)


async def _probe(client: BenchClient, target: Target, text: str, num_tokens: int, extra: dict[str, Any]) -> RequestRecord:
    record = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=client.now_ns())
    messages = [{"role": "user", "content": text}]
    await client.ask(record, build_body(target.model, messages, target.dialect, num_output_tokens=num_tokens, extra=extra))
    return record
