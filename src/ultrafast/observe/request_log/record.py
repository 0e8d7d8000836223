"""One line of the request log. JSON Lines; the first line of each file is a `LogHead`."""

from __future__ import annotations

import msgspec

from ultrafast.kv.run import RUN_TOKENS

FORMAT = "ultrafast-request-log"
VERSION = 1


class LogHead(msgspec.Struct, kw_only=True, frozen=True):
    """What the file is. `block_tokens`: prompt tokens that each name in `LogRecord.prefix` adds."""

    format: str = FORMAT
    version: int = VERSION
    block_tokens: int = RUN_TOKENS


class LogRecord(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One finished request. Short times are seconds; lengths are tokens.

    Attributes:
        arrival: when it came, seconds since 1970 (UTC).
        tier, served_tier: asked for; served in, when that is another.
        prompt_tokens: 0 = refused before its prompt was read.
        output_tokens: as in the usage that the client saw.
        outcome: stop, length, abort, error, reject, expire or deadline (cut at its execution deadline).
        reason: of a refusal, such as queue_full.
        queue_s, ttft_s: from the arrival to its place in the engine, and to its first token; absent when it never got that far.
        e2e_s: from the arrival to its end, in the engine.
        space: a name for whose KV it may share; absent = everybody's.
        prefix: names of the beginnings of its prompt, `block_tokens` longer each; see `kv.names`.
    """

    arrival: float
    tier: str
    prompt_tokens: int
    output_tokens: int
    outcome: str
    e2e_s: float
    served_tier: str | None = None
    cached_tokens: int = 0
    reason: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    space: str = ""
    prefix: list[str] = []
