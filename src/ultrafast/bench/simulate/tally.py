"""What became of the requests of one simulation: one compact row each, filled as events come."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict

from ultrafast.bench.simulate.load import SimRequest
from ultrafast.core.events import EXECUTION_TIMEOUT, Event, RequestFinished, StepFinished
from ultrafast.core.request import FinishReason
from ultrafast.core.tiers import ServiceTier
from ultrafast.sched.limits import SchedulerLimits

NOT_SERVED = float("inf")


class TierTally:
    """Requests that asked for one tier. Times in seconds, those of requests without an answer are not in the lists.

    Attributes:
        num_good: answered in full, within both objectives of the tier they asked for.
        refused: by reason.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_good = 0
        self.num_answered = 0
        self.num_downgraded = 0
        self.num_cut_short = 0
        self.num_cancelled = 0
        self.refused: Counter[str] = Counter()
        self.ttft_s = array("d")
        self.tpot_s = array("d")
        self.e2e_s = array("d")
        self.queue_s = array("d")
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_preemptions = 0
        self.num_pauses = 0


class Tally:
    """All requests, by the tier they asked for.

    Args:
        limits: say what each tier promises.
        serve_as: the one tier in which all are served; None = each in its own.
    """

    def __init__(self, limits: SchedulerLimits, serve_as: ServiceTier | None = None) -> None:
        self._limits = limits
        self._serve_as = serve_as
        self._asked: dict[str, SimRequest] = {}
        self.tiers: dict[ServiceTier, TierTally] = defaultdict(TierTally)
        self.num_steps = 0
        self.num_step_tokens = 0
        self.max_kv_tokens = 0
        self.max_num_waiting = 0
        self.num_decodes = 0

    @property
    def num_open(self) -> int:
        """Requests without a terminal event yet."""
        return len(self._asked)

    def routed(self, request: SimRequest) -> None:
        """A request came."""
        self._asked[str(request.index)] = request
        self.tiers[request.tier].num_requests += 1

    def add(self, events: list[Event], now: float) -> None:  # noqa: ARG002 - the events carry their times
        """Book what a turn brought."""
        for event in events:
            if isinstance(event, StepFinished):
                self._step(event)
            elif isinstance(event, RequestFinished):
                self._finished(event)

    def _step(self, event: StepFinished) -> None:
        self.num_steps += 1
        self.num_step_tokens += event.num_tokens
        self.num_decodes += event.num_decode_sequences
        self.max_kv_tokens = max(self.max_kv_tokens, event.num_kv_tokens_running)
        self.max_num_waiting = max(self.max_num_waiting, event.num_waiting)

    def _finished(self, event: RequestFinished) -> None:
        request = self._asked.pop(event.request_id, None)
        assert request is not None, f"request {event.request_id} ended twice, or never came"
        tally = self.tiers[request.tier]
        tally.num_preemptions += event.num_preemptions
        tally.num_pauses += event.num_pauses
        if event.reason is FinishReason.ABORT:
            tally.num_cancelled += 1
        elif event.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._answered(tally, request, event)
        elif event.reason is FinishReason.DEADLINE:
            tally.refused[EXECUTION_TIMEOUT] += 1
        else:
            tally.refused[event.drop_reason or "too_long"] += 1

    def _answered(self, tally: TierTally, request: SimRequest, event: RequestFinished) -> None:
        assert event.first_token_s is not None, "an answer has a first token"
        assert event.scheduled_s is not None, "an answer had a place"
        objective = self._limits.policy_of(request.tier)
        ttft_s = event.first_token_s - request.due_s
        tally.num_answered += 1
        tally.num_cut_short += event.num_output_tokens < request.num_output_tokens
        tally.num_downgraded += event.tier is not (self._serve_as or request.tier)
        tally.ttft_s.append(ttft_s)
        tally.e2e_s.append(event.finished_s - request.due_s)
        tally.queue_s.append(event.scheduled_s - request.due_s)
        is_good = ttft_s <= objective.ttft_s
        if event.num_output_tokens > 1:
            tpot_s = (event.finished_s - event.first_token_s) / (event.num_output_tokens - 1)
            tally.tpot_s.append(tpot_s)
            is_good = is_good and tpot_s <= objective.tpot_s
        tally.num_good += is_good
        tally.num_prompt_tokens += event.num_prompt_tokens
        tally.num_cached_tokens += event.num_cached_tokens
        tally.num_output_tokens += event.num_output_tokens
