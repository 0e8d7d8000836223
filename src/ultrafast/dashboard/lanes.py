"""Who decodes, who prefills which chunk, who waits: one lane per request.

Keeps only what the client's ledger does not know: how much of a prompt is computed, and who lost their place. Requests are
shown by a short id that is the end of the random part of their completion id; it says nothing about the client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.views import Lane, LaneState, Queues
from ultrafast.engine.live import LiveRequest
from ultrafast.engine.messages import StepReport

MAX_LANES = 16
MAX_WALKED = 2000
"""So many live requests are looked at for one frame; beyond that the counts per tier are of the first."""
ID_LENGTH = 6


class Lanes:
    """Follows the running requests. Bounded by how many live."""

    def __init__(self) -> None:
        self._num_computed: dict[str, int] = {}
        self._preempted: set[str] = set()

    @property
    def num_running(self) -> int:
        return len(self._num_computed)

    def on_report(self, report: StepReport) -> None:
        for scheduled in report.scheduled:
            self._num_computed[scheduled.request_id] = scheduled.num_cached_tokens
            self._preempted.discard(scheduled.request_id)
        if report.stats is not None:
            for chunk in report.stats.prefills:
                if chunk.request_id in self._num_computed:
                    self._num_computed[chunk.request_id] = chunk.start + chunk.num_tokens
        for preempted in report.preempted:
            self._num_computed.pop(preempted.request_id, None)
            self._preempted.add(preempted.request_id)
        for finished in report.finished:
            self._num_computed.pop(finished.request_id, None)
            self._preempted.discard(finished.request_id)

    def on_restart(self) -> None:
        """The child is gone, and with it everybody's place."""
        self._num_computed.clear()
        self._preempted.clear()

    def queues(self, live: Collection[LiveRequest]) -> Queues:
        """How many run and wait, in all and per tier (in the order of urgency)."""
        num_running = dict.fromkeys(ServiceTier, 0)
        num_waiting = dict.fromkeys(ServiceTier, 0)
        for request in islice(live, MAX_WALKED):
            counts = num_running if request.request.request_id in self._num_computed else num_waiting
            counts[request.request.tier] += 1
        running = min(self.num_running, len(live))
        return Queues(running, len(live) - running, list(num_running.values()), list(num_waiting.values()))

    def read(self, live: Iterable[LiveRequest], last: StepReport | None, now: float) -> list[Lane]:
        """At most `MAX_LANES`: those that run, then those that wait, the most urgent first."""
        running: list[LiveRequest] = []
        waiting: list[LiveRequest] = []
        for request in islice(live, MAX_WALKED):
            (running if request.request.request_id in self._num_computed else waiting).append(request)
        if len(running) < MAX_LANES:
            waiting.sort(key=lambda one: one.request.tier.rank)
        chunks, decoding = _composition(last)
        shown = [*running, *waiting[:MAX_LANES]][:MAX_LANES]
        return [self._lane(one, chunks.get(one.request.request_id), decoding, now) for one in shown]

    def _lane(self, live: LiveRequest, chunk: tuple[int, int] | None, decoding: set[str], now: float) -> Lane:
        request = live.request
        num_output = len(live.output_tokens)
        num_computed = self._num_computed.get(request.request_id)
        if num_computed is None:
            state = LaneState.PREEMPTED if request.request_id in self._preempted else LaneState.WAITING
        elif chunk is not None:
            state = LaneState.PREFILL
        else:
            state = LaneState.DECODE if request.request_id in decoding else LaneState.PAUSED
        return Lane(
            short_id(request.request_id),
            request.tier,
            state,
            request.num_prompt_tokens,
            live.num_cached_tokens,
            min(num_computed or 0, request.num_prompt_tokens),
            chunk if state is LaneState.PREFILL else None,
            num_output,
            request.params.max_tokens,
            max(0.0, now - request.arrival_s),
        )


def short_id(request_id: str) -> str:
    """`chatcmpl-...a1b2c3:17` -> `a1b2c3:17`; the number tells the choices of one call apart."""
    name, _, number = request_id.partition(":")
    return f"{name[-ID_LENGTH:]}:{number}"


def _composition(last: StepReport | None) -> tuple[dict[str, tuple[int, int]], set[str]]:
    if last is None or last.stats is None:
        return {}, set()
    chunks = {chunk.request_id: (chunk.start, chunk.num_tokens) for chunk in last.stats.prefills}
    return chunks, {token.request_id for token in last.tokens} - chunks.keys()
