"""One live request on the client's side: what it was, what it has delivered, and what it has been through.

Whose tokens are whose:

    request.output_tokens  |  delivered by earlier children  |  delivered by this child
    <------------------------------ output_tokens ----------------------------------->
                                                              ^ num_tokens_at_send
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ultrafast.core.events import RequestFinished, RequestScheduled
from ultrafast.core.request import FinishReason, Request
from ultrafast.engine.stream import EngineStream


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request without its terminal event yet.

    Attributes:
        output_tokens: every token delivered so far, those of earlier children included.
        num_crashes: children that were lost while they held this request.
        is_sent: the child of now has it.
        run_order: when the child of now (or the last one) first ran it, as a count; None = not seen running there.
        num_tokens_at_send: length of `output_tokens` when the child of now got it.
        scheduled_s, first_token_s, num_cached_tokens: of its first life, which is what the client experienced.
    """

    request: Request
    stream: EngineStream
    output_tokens: list[int]
    num_crashes: int = 0
    is_sent: bool = False
    is_aborted: bool = False
    run_order: int | None = None
    num_tokens_at_send: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    num_cached_tokens: int = 0

    @property
    def num_tokens_since_send(self) -> int:
        """Progress in the child of now."""
        return len(self.output_tokens) - self.num_tokens_at_send

    @property
    def is_complete(self) -> bool:
        """All tokens arrived, though perhaps not the news that it has finished."""
        return len(self.output_tokens) >= self.request.params.max_tokens

    def send(self) -> Request:
        """Mark as sent and return the request to submit: with what was delivered, so that the child continues there."""
        assert not self.is_sent, f"request {self.request.request_id} sent twice to one child"
        self.is_sent = True
        self.num_tokens_at_send = len(self.output_tokens)
        self.run_order = None
        if not self.num_crashes:
            return self.request
        return dataclasses.replace(
            self.request,
            output_tokens=tuple(self.output_tokens),
            is_admitted=True,
            had_place=self.scheduled_s is not None,
            placed_s=self.scheduled_s,
        )

    def on_scheduled(self, event: RequestScheduled, run_order: int) -> None:
        if self.run_order is None:
            self.run_order = run_order
        if self.scheduled_s is None:
            self.scheduled_s = event.at_s
            self.num_cached_tokens = event.num_cached_tokens
        self.stream.push(event)

    def checked(self, event: RequestFinished) -> RequestFinished:
        """Return the terminal event as the client shall see it.

        After a crash the times are those of the first life. The child's count of output tokens must be ours: a gap or a repeat
        in the text must never pass as success.
        """
        if event.num_output_tokens != len(self.output_tokens):
            message = f"the engine produced {event.num_output_tokens} tokens but {len(self.output_tokens)} arrived"
            return dataclasses.replace(event, reason=FinishReason.ERROR, error=message)
        if self.num_crashes == 0:
            return event
        return dataclasses.replace(
            event,
            num_cached_tokens=self.num_cached_tokens if self.scheduled_s is not None else event.num_cached_tokens,
            scheduled_s=self.scheduled_s if self.scheduled_s is not None else event.scheduled_s,
            first_token_s=self.first_token_s if self.first_token_s is not None else event.first_token_s,
        )

    def stopped(self, event: RequestFinished) -> RequestFinished:
        """The same for one whose reader had all that it wanted and asked for its end."""
        checked = self.checked(event)
        return dataclasses.replace(checked, reason=FinishReason.STOP) if checked.reason is FinishReason.ABORT else checked

    def delivered(self, event: RequestFinished) -> RequestFinished:
        """The same with the tokens that its reader delivered, if it says: those behind a stop string are nobody's."""
        num_tokens = self.stream.num_delivered
        return event if num_tokens is None else dataclasses.replace(event, num_output_tokens=num_tokens)

    def finished_here(self, reason: FinishReason, at_s: float, error: str | None = None) -> RequestFinished:
        """Return a terminal event for a request that no child will finish."""
        return RequestFinished(
            request_id=self.request.request_id,
            reason=reason,
            tier=self.request.tier,
            num_prompt_tokens=self.request.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_computed_tokens=0,  # died with the child
            num_output_tokens=len(self.output_tokens),
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=at_s,
            error=error,
            is_internal=self.request.is_internal,
        )
