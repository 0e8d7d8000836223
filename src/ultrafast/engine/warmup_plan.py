"""A warm-up plan: what traffic showed to be worth warming, as a file; the engine applies it at its start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ultrafast.core.errors import ConfigError

FORMAT = "ultrafast-warmup-plan"
VERSION = 1


class WarmPrefix(msgspec.Struct, kw_only=True, frozen=True):
    """A beginning of prompts, by its name (see `kv.names`). `num_uses`: requests that began with it."""

    name: str
    num_tokens: int
    num_uses: int


class WarmupPlan(msgspec.Struct, kw_only=True, frozen=True):
    """Shapes and prefixes, the most valuable first.

    Attributes:
        chunks: prefill sizes, tokens. decodes: numbers of streams.
        key_file: holds the key under which the prefixes are named; None = there are none.
        num_requests, period_s: what it was made from.
    """

    chunks: list[int]
    decodes: list[int]
    prefixes: list[WarmPrefix]
    key_file: str | None
    num_requests: int
    period_s: float
    format: str = FORMAT
    version: int = VERSION


def read_warmup_plan(path: Path) -> WarmupPlan:
    """Read a plan.

    Raises:
        ConfigError: unreadable, or not one.
    """
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=WarmupPlan)
    except (OSError, msgspec.DecodeError) as error:
        raise _bad(path, str(error)) from error
    if plan.format != FORMAT or plan.version != VERSION:
        raise _bad(path, f"this is {plan.format!r}, version {plan.version}")
    if any(size < 1 for size in (*plan.chunks, *plan.decodes)):
        raise _bad(path, "a shape below 1")
    return plan


def _bad(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The warm-up plan {path} cannot be used: {reason}.",
        param="engine.warmup_plan",
        hint="Make one with `ultrafast warmup --from-log`.",
    )
