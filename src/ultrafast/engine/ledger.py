"""Every live request of one engine, across the lives of its children.

Owns the rule that no request is dropped: what was added here gets exactly one `RequestFinished`, from a child or from here.
Knows no processes and no sockets; runs on the event loop of the API process and never waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from ultrafast.core.clock import Clock
from ultrafast.core.events import RequestFinished, RequestScheduled
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.live import LiveRequest
from ultrafast.engine.messages import StepReport
from ultrafast.engine.quarantine import Quarantine
from ultrafast.engine.stream import EngineStream

_CRASH_HINT = "the engine crashed {} times while running this request"


def _ignore(_: StepReport) -> None:
    """Nobody observes."""


class Ledger:
    """Live requests and what to send of them."""

    def __init__(self, clock: Clock, max_request_crashes: int, on_read: Callable[[StepReport], None] = _ignore) -> None:
        """`on_read` gets, as a report for observers, the ends that waited until the reader had counted what it delivered."""
        self._clock = clock
        self._on_read = on_read
        self._live: dict[str, LiveRequest] = {}
        self._unsent: list[LiveRequest] = []
        self._quarantine = Quarantine(max_request_crashes)
        self._num_scheduled = 0
        self._num_unplaced: Counter[ServiceTier] = Counter()
        self.num_sent = 0

    def __len__(self) -> int:
        return len(self._live)

    @property
    def request_ids(self) -> list[str]:
        return list(self._live)

    @property
    def live_requests(self) -> Collection[LiveRequest]:
        """A look at every live request, in the order in which they came; not to be changed by who looks."""
        return self._live.values()

    def num_unplaced(self, tier: ServiceTier) -> int:
        """Live requests of a tier that have not been seen to get a place; those that only ask are not meant for one."""
        return self._num_unplaced[tier]

    def add(self, request: Request, stream: EngineStream) -> None:
        """Take over a request. It is not sent yet."""
        assert request.request_id not in self._live, f"request id {request.request_id} is alive already"
        live = LiveRequest(request, stream, output_tokens=list(request.output_tokens))
        stream.output_tokens = live.output_tokens
        self._live[request.request_id] = live
        self._num_unplaced[request.tier] += not request.is_inquiry
        self._unsent.append(live)

    def take_unsent(self) -> list[Request]:
        """Return what the child, which must be ready, shall get now, in that order; it counts as sent."""
        if self._quarantine.is_active:
            ready = self._quarantine.next_group()
            if self._quarantine.admits_newcomers:
                ready, self._unsent = ready + self._unsent, []
        else:
            ready, self._unsent = self._unsent, []
        self.num_sent += len(ready)
        return [live.send() for live in ready]

    @property
    def is_holding_back(self) -> bool:
        """A quarantine goes on: after each report there may be something to send."""
        return self._quarantine.is_active

    def apply(self, report: StepReport) -> StepReport:
        """Hand the events of a report to their streams.

        Returns:
            the report for observers: the same one, or one with terminal events as the clients saw them.
        """
        if report.scheduled:
            self._note_scheduled(report.scheduled)
        at_s = report.stats.at_s if report.stats is not None else self._clock()
        live_requests = self._live
        for token in report.tokens:
            if (live := live_requests.get(token.request_id)) is not None:
                if live.first_token_s is None:
                    live.first_token_s = at_s
                live.output_tokens.append(token.token)
                live.stream.push(token)
        for preempted in report.preempted:
            if (live := live_requests.get(preempted.request_id)) is not None:
                live.stream.push(preempted)
        if not report.finished:
            return report
        return msgspec.structs.replace(report, finished=self._finish_all(report.finished))

    def mark_aborted(self, request_id: str) -> bool:
        """Note an abort; return whether the child has to be told. Otherwise the request waits for `finish_unsent_aborts`."""
        live = self._live.get(request_id)
        if live is None or live.is_aborted:
            return False
        live.is_aborted = True
        return live.is_sent

    def finish_unsent_aborts(self) -> StepReport:
        """End aborted requests that no child has; returns it as a report for observers."""
        return self._end([live for live in self._live.values() if live.is_aborted and not live.is_sent], FinishReason.ABORT)

    def child_lost(self) -> StepReport:
        """Every sent request comes back, to be sent to the next child: those that ran first, in their old order.

        Returns:
            a report for observers of what ends here: aborted requests, and one that was found guilty of the crash.
        """
        held = [live for live in self._live.values() if live.is_sent]
        held.sort(key=lambda live: (live.run_order is None, live.run_order or 0))
        for live in held:
            live.is_sent = False
        self.num_sent = 0
        ended = self._end([live for live in held if live.is_aborted], FinishReason.ABORT).finished
        ended += self._end([live for live in held if live.is_complete and not live.is_aborted], FinishReason.LENGTH).finished
        held = [live for live in held if not live.is_aborted and not live.is_complete]
        for live in held:
            live.num_crashes += 1
        guilty = self._quarantine.on_crash(held)
        if guilty is not None:
            held.remove(guilty)
            ended += self._end([guilty], FinishReason.ERROR, _CRASH_HINT.format(guilty.num_crashes)).finished
        if not self._quarantine.is_active:
            self._unsent = held + self._unsent
        return StepReport(finished=ended)

    def end_all(self, reason: FinishReason, error: str | None = None) -> StepReport:
        """End everything that lives; returns it as a report for observers."""
        return self._end(list(self._live.values()), reason, error)

    def _note_scheduled(self, events: list[RequestScheduled]) -> None:
        for event in events:
            live = self._live.get(event.request_id)
            if live is not None:
                self._num_scheduled += 1
                self._num_unplaced[live.request.tier] -= live.scheduled_s is None
                live.on_scheduled(event, self._num_scheduled)

    def _finish_all(self, events: list[RequestFinished]) -> list[RequestFinished]:
        seen = []
        for event in events:
            live = self._live.get(event.request_id)
            if live is None:
                continue
            end = live.checked(event) if not live.stream.is_stopped else live.stopped(event)
            if live.stream.is_counted and not live.stream.is_left:
                live.stream.on_read = partial(self._tell_read, live, end)
            else:
                seen.append(live.delivered(end))
            self._remove(live, end)
        return seen

    def _tell_read(self, live: LiveRequest, end: RequestFinished) -> None:
        self._on_read(StepReport(finished=[live.delivered(end)]))

    def _end(self, ending: list[LiveRequest], reason: FinishReason, error: str | None = None) -> StepReport:
        now = self._clock()
        events = []
        for live in ending:
            events.append(live.finished_here(reason, now, error))
            self._remove(live, events[-1])
        return StepReport(finished=events)

    def _remove(self, live: LiveRequest, event: RequestFinished) -> None:
        del self._live[live.request.request_id]
        self._num_unplaced[live.request.tier] -= live.scheduled_s is None and not live.request.is_inquiry
        if live.is_sent:
            self.num_sent -= 1
        elif live in self._unsent:
            self._unsent.remove(live)
        if self._quarantine.is_active:
            self._quarantine.forget(live)
        live.stream.push(event)
