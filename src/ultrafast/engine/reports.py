"""What the engine loop tells: one report out of the events of a step, and how requests end that the scheduler never got."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ultrafast.core.errors import InvalidRequestError, UltrafastError
from ultrafast.core.events import (
    DropReason,
    Event,
    KvLevelsChanged,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    TokenProduced,
)
from ultrafast.core.request import FinishReason, Request
from ultrafast.engine.messages import StepReport


def report_of(events: Iterable[Event]) -> StepReport:
    """Sort the events by what they tell."""
    tokens: list[TokenProduced] = []
    scheduled: list[RequestScheduled] = []
    preempted: list[RequestPreempted] = []
    finished: list[RequestFinished] = []
    stats, levels = None, None
    for event in events:
        match event:
            case TokenProduced():
                tokens.append(event)
            case StepFinished():
                stats = event
            case RequestScheduled():
                scheduled.append(event)
            case RequestPreempted():
                preempted.append(event)
            case RequestFinished():
                finished.append(event)
            case KvLevelsChanged():
                levels = event
    return StepReport(tokens, scheduled, preempted, finished, stats, levels)


def ended(request: Request, reason: FinishReason, now: float) -> RequestFinished:
    """The terminal event of a request for which nothing was computed here."""
    return RequestFinished(
        request.request_id,
        reason,
        request.tier,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=0,
        num_computed_tokens=0,
        num_output_tokens=len(request.output_tokens),
        arrival_s=request.arrival_s,
        scheduled_s=None,
        first_token_s=None,
        finished_s=now,
    )


def refused(request: Request, error: UltrafastError, now: float) -> RequestFinished:
    """It can never run. What could begin once and cannot be continued is not the client's fault, and a bug never is."""
    is_clients = isinstance(error, InvalidRequestError) and not request.output_tokens
    end = ended(request, FinishReason.REJECT if is_clients else FinishReason.ERROR, now)
    return replace(end, error=error.message, error_code=error.code, error_param=error.param)


def dropped(request: Request, reason: FinishReason, why: DropReason, retry_after_s: float, now: float) -> RequestFinished:
    """There was no room for it (REJECT), or it waited too long (EXPIRE)."""
    return replace(ended(request, reason, now), drop_reason=why, retry_after_s=retry_after_s)
