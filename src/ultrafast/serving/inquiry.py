"""Asking the engine whether it would refuse a request, before the request is prepared.

call -> looks full? --no--> prepare -> submit
             |
            yes --> inquiry -> gate -> refused: the client's answer, without template and tokeniser
                                  +--> not refused: prepare -> submit, where the gate decides again
"""

from __future__ import annotations

import itertools

from ultrafast.core.events import RequestFinished
from ultrafast.core.request import FinishReason, Request, RequestSlo, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.merge import MergedStreams
from ultrafast.serving.ports import EnginePort
from ultrafast.serving.refusals import refusal

_numbers = itertools.count()
_ANY_PROMPT = (0,)


async def inquire(engine: EnginePort, call_id: str, tier: ServiceTier, arrival_s: float, slo: RequestSlo) -> None:
    """Return when such a request would not be refused at this moment.

    Raises:
        OverloadedError, InvalidRequestError: it is refused, as `refusals.refusal` says.
        UnavailableError: see `EnginePort.submit`.
    """
    request = Request(
        f"{call_id}:inquiry-{next(_numbers)}", _ANY_PROMPT, SamplingParams(), tier, arrival_s, slo=slo, is_inquiry=True
    )
    async with MergedStreams([engine.submit(request)]) as batches:
        async for batch in batches:
            for event in batch:
                if isinstance(event, RequestFinished) and event.reason is FinishReason.REJECT:
                    raise refusal(event, slo)
