"""Reports and requests for dashboard tests."""

from __future__ import annotations

from typing import Any

from ultrafast.core.events import (
    PrefillChunk,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    TokenProduced,
)
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.live import LiveRequest
from ultrafast.engine.messages import StepReport
from ultrafast.engine.stream import EngineStream


def request_id(name: str, index: int = 0) -> str:
    """An engine id as serving makes them; `name` are the six characters that the page shows."""
    return f"chatcmpl-{'0' * 18}{name}:{index}"


def live(name: str, *, tier: ServiceTier = ServiceTier.DEFAULT, num_prompt: int = 100, num_output: int = 0) -> LiveRequest:
    request = Request(request_id(name), (7,) * num_prompt, SamplingParams(max_tokens=50), tier, arrival_s=10.0)
    return LiveRequest(request, EngineStream(request.request_id, lambda _: None), [1] * num_output)


def stats(*prefills: tuple[str, int, int], **values: Any) -> StepFinished:
    chunks = tuple(PrefillChunk(request_id(name), start, num) for name, start, num in prefills)
    num_prefill = sum(chunk.num_tokens for chunk in chunks)
    numbers: dict[str, Any] = {
        "step": 1, "at_s": 20.0, "duration_s": 0.02, "schedule_s": 0.0001, "num_tokens": num_prefill,
        "num_prefill_tokens": num_prefill, "num_decode_sequences": 0, "num_prefill_sequences": len(chunks), "num_running": 0,
        "num_waiting": 0, "num_kv_tokens_running": 65, "num_kv_tokens_cached": 31, "num_kv_tokens_free": 224,
    }  # fmt: skip
    return StepFinished(**(numbers | values), prefills=chunks)


def report(
    *,
    scheduled: tuple[str, ...] = (),
    tokens: tuple[str, ...] = (),
    preempted: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
    step: StepFinished | None = None,
) -> StepReport:
    return StepReport(
        [TokenProduced(request_id(name), 5) for name in tokens],
        [RequestScheduled(request_id(name), 11.0, 0) for name in scheduled],
        [RequestPreempted(request_id(name), 12.0, ServiceTier.DEFAULT) for name in preempted],
        [end(name) for name in finished],
        step,
    )


def end(name: str, *, num_cached: int = 60, scheduled_s: float | None = 11.0) -> RequestFinished:
    return RequestFinished(
        request_id(name), FinishReason.STOP, ServiceTier.DEFAULT, 100, num_cached, 45, 5, 10.0, scheduled_s, 12.0, 13.0
    )
