"""Refusals of the engine's gate, as errors for the client: each says what to do and when to come back."""

from __future__ import annotations

from ultrafast.core.errors import InvalidRequestError, OverloadedError, UltrafastError
from ultrafast.core.events import DropReason, RequestFinished

_MESSAGES = {
    DropReason.QUEUE_FULL: "The queue of tier {tier} is full.",
    DropReason.QUEUE_TOKENS_FULL: "The queue of tier {tier} holds as many prompt tokens as it may.",
    DropReason.QUEUE_TIMEOUT: "The request waited {waited_s:.1f} s for a place, as long as it may in tier {tier}.",
    DropReason.SLO_AT_RISK: "The first token would come later than the objective that you insist on.",
}


def refusal(finished: RequestFinished) -> UltrafastError:
    """Return the error for a request that was refused or expired."""
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
        message = _MESSAGES[reason].format(tier=finished.tier.value, waited_s=finished.finished_s - finished.arrival_s)
        code = "queue_timeout" if reason is DropReason.QUEUE_TIMEOUT else "slow_down"
        error = OverloadedError(message, retry_after_s=finished.retry_after_s or 1.0, code=code)
    error.drop_reason = reason.value
    return error
