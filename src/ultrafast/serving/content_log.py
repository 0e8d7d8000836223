"""Writes prompts and answers into the log, for operators who asked for it (`logging.is_content_logged`).

A wrapper around the service: without it, no code path on the way of a request can log a word of what people write.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

from ultrafast.observe.logs import log_fields
from ultrafast.serving.contract import ChatCall, CompletionCall, Delta, ServingEvent
from ultrafast.serving.lane import DeltaLane
from ultrafast.serving.service import Service

_log = logging.getLogger("ultrafast.content")


class ContentLoggingService(Service):
    """A service that logs each call's prompt when it comes and its text when it ends, however it ends."""

    def chat(self, call: ChatCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]:  # noqa: ARG002
        """See `Service.chat`. Every delta comes through the events: what took the lane could not be logged."""
        return _logged(call.request_id, {"messages": call.messages}, super().chat(call))

    def complete(self, call: CompletionCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]:  # noqa: ARG002
        """See `Service.complete`."""
        return _logged(call.request_id, {"prompts": call.prompts}, super().complete(call))


async def _logged(
    request_id: str, prompt: dict[str, Any], events: AsyncGenerator[ServingEvent, None]
) -> AsyncGenerator[ServingEvent, None]:
    log_fields(_log, logging.INFO, "prompt", {"request_id": request_id, **prompt})
    texts: dict[int, list[str]] = {}
    try:
        async for event in events:
            if isinstance(event, Delta):
                pieces = [event.reasoning, event.text, *(call.arguments for call in event.tool_calls)]
                texts.setdefault(event.index, []).extend(pieces)
            yield event
    finally:
        await events.aclose()
        answers = {index: "".join(pieces) for index, pieces in texts.items()}
        log_fields(_log, logging.INFO, "answer", {"request_id": request_id, "texts": answers})
