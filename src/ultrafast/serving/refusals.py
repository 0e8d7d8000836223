"""Refusals of the engine's gate, and dead ends of an output, as errors: each says what to do and when to come back."""

from __future__ import annotations

from ultrafast.core.errors import InvalidRequestError, OverloadedError, UltrafastError
from ultrafast.core.events import DropReason, RequestFinished
from ultrafast.core.request import TIER_SLO, RequestSlo

_MESSAGES = {
    DropReason.QUEUE_FULL: "The queue of tier {tier} is full.",
    DropReason.QUEUE_TOKENS_FULL: "The queue of tier {tier} holds as many prompt tokens as it may.",
    DropReason.QUEUE_TIMEOUT: "The request waited {waited_s:.1f} s for a place, as long as tier {tier} lets requests wait.",
    DropReason.SLO_AT_RISK: "The first token would come later than the objective that you insist on.",
}

_COME_BACK = (
    "come back after retry-after-ms with the header x-stainless-retry-count: 1, as OpenAI's libraries do: whoever says so finds "
    "room that newcomers have to leave"
)


def refusal(finished: RequestFinished, slo: RequestSlo = TIER_SLO) -> UltrafastError:
    """Return the error for a request that was refused or expired. `slo`: what it asked for beyond its tier."""
    reason = finished.drop_reason
    if reason is None:
        assert finished.error is not None, "a refused request has a reason"
        return InvalidRequestError(finished.error, code=finished.error_code, param=finished.error_param)
    error: UltrafastError
    if reason is DropReason.SLO_UNREACHABLE:
        error = InvalidRequestError(
            "This server can never meet the objective that you insist on for this request.",
            code="sla_unavailable",
            hint="Send a shorter prompt, a larger x-slo-ttft-ms or x-slo-tpot-ms, or leave x-slo-strict out.",
        )
    else:
        waited_s = finished.finished_s - finished.arrival_s
        message = _MESSAGES[reason].format(tier=finished.tier.value, waited_s=waited_s)
        hint = _COME_BACK
        # The shorter of the two limits holds: whoever waited for its own has not waited for the tier's.
        if reason is DropReason.QUEUE_TIMEOUT and slo.queue_ttl_s is not None and waited_s >= slo.queue_ttl_s:
            message = f"The request waited for a place as long as its own x-queue-ttl-ms allows: {slo.queue_ttl_s * 1000:g} ms."
            hint = f"send a larger x-queue-ttl-ms, or leave it out: then the limit of tier {finished.tier.value} holds"
        code = "queue_timeout" if reason is DropReason.QUEUE_TIMEOUT else "slow_down"
        error = OverloadedError(message, retry_after_s=finished.retry_after_s or 1.0, code=code, hint=hint)
    error.drop_reason = reason.value
    return error


def dead_end(finished: RequestFinished) -> InvalidRequestError:
    """Return the error for a request whose own rules let its output neither go on nor end."""
    return InvalidRequestError(
        f"The answer broke off after {finished.num_output_tokens} tokens: {finished.error}.",
        code=finished.error_code,
        hint="what came so far is in the stream; simplify the schema, lower min_tokens, or try another seed",
    )
