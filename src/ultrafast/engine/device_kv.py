"""What the KV pool on the device holds, as the last step said."""

from __future__ import annotations

from typing import NamedTuple

from ultrafast.core.events import StepFinished
from ultrafast.engine.options import EngineFacts


class DeviceKv(NamedTuple):
    """Tokens in the pool: of running requests, and idle ones kept for reuse. `bytes_per_token` turns them into memory."""

    num_running_tokens: int
    num_cached_tokens: int
    capacity_tokens: int
    bytes_per_token: int


def device_kv(facts: EngineFacts, stats: StepFinished | None) -> DeviceKv:
    """`stats`: of the last step of this child; None = it has made none, and holds nothing."""
    running, cached = (stats.num_kv_tokens_running, stats.num_kv_tokens_cached) if stats is not None else (0, 0)
    return DeviceKv(running, cached, facts.kv_capacity_tokens, facts.state_bytes_per_token)
