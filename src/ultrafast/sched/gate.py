"""The gate: what becomes of an arriving request, decided before it is queued.

    fits its tier's queue, and will be in time or need not be    -> it waits for its place and cells (which may be at once)
    cannot be in time, its tier may be left                      -> a less urgent tier that can be in time, if there is one
    the client insists (strict) and it cannot be in time now     -> refused: slo_at_risk, come back later
    the client insists, and it never could at its very best      -> refused: slo_unreachable
    the queue is full                                            -> a less urgent tier with room, if allowed, else refused

Who was refused and comes back finds room in the queue that newcomers had to leave: else, under an overload that lasts, those
would have taken every place that the advice to come back was about.

Predicted TTFT = wait for a place and cells + prefill of what is not cached, and of prefills that come before it + the step under
way. As long as nothing was measured, a part that is unknown counts as zero: nobody is refused on a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from ultrafast.core.events import DropReason
from ultrafast.core.tiers import NEWCOMER_SHARE, ServiceTier
from ultrafast.sched.beside import Beside
from ultrafast.sched.budget import PREFILL_STRETCH
from ultrafast.sched.coming import NOBODY, Coming
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.room import Room
from ultrafast.sched.state import SchedulerState

_RETRY_QUEUE_SHARE = 4
"""A client that found the queue full comes back when a quarter of it has drained."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a request.

    Attributes:
        tier: the tier that serves it.
        reason: why it is refused, or why it is served in another tier than it asked for; None = neither.
        is_refused: it gets no place in the queue.
        retry_after_s: when to come back, seconds; None = it would not help.
    """

    tier: ServiceTier
    reason: DropReason | None = None
    is_refused: bool = False
    retry_after_s: float | None = None


class Gate:
    """Judges arrivals; changes nothing but the retry slots.

    Attributes:
        beside: the other side of a pair, with which the tiers' queues and the machine are shared; None = there is none.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._limits = state.limits
        self._room = Room(state)
        self.beside: Beside | None = None

    def judge(self, live: LiveRequest, now: float, coming: Coming = NOBODY) -> Verdict:
        """Decide about a request that is not in the queue yet. `coming`: will be there before it."""
        tier, slo = live.tier, live.request.slo
        policy = self._limits.policy_of(tier)
        if live.request.is_admitted:
            return Verdict(tier)
        full = self._why_full(live, tier, now, coming)
        if not slo.is_strict and not (policy.is_downgradable and slo.is_movable):
            return self._refuse(live, full, now) if full else Verdict(tier)
        late = self._why_late(live, tier, now)
        if slo.is_strict:
            reason = late or full
            return self._refuse(live, reason, now) if reason else Verdict(tier)
        if not (full or late):
            return Verdict(tier)
        for other in self._limits.order[self._limits.rank_of(tier) + 1 :]:
            if not self._why_full(live, other, now, coming) and not self._why_late(live, other, now):
                return Verdict(other, full or late)
        return self._refuse(live, full, now) if full else Verdict(tier)

    def _refuse(self, live: LiveRequest, reason: DropReason, now: float) -> Verdict:
        rank, state = live.rank, self._state
        if reason is DropReason.SLO_UNREACHABLE:
            return Verdict(live.tier, reason, is_refused=True)
        wait_s = state.drain.turn_s(rank, state.num_waiting, now)
        rate = state.drain.rate(rank, now)
        if reason is not DropReason.SLO_AT_RISK and rate is not None:
            wait_s = max(1, state.waiting.num_of(rank) // _RETRY_QUEUE_SHARE) / rate
        return Verdict(live.tier, reason, is_refused=True, retry_after_s=state.drain.retry_after_s(rank, wait_s, now))

    def _why_full(self, live: LiveRequest, tier: ServiceTier, now: float, coming: Coming) -> DropReason | None:
        """Whether a tier's queue has room. Who finds place and cells at once, free or held by less urgent work, is not in it."""
        state, beside, rank = self._state, self.beside, self._limits.rank_of(tier)
        policy = self._limits.tiers[rank]
        limit, token_limit = policy.max_num_waiting, policy.max_waiting_tokens
        is_newcomer = not (live.request.slo.is_retry or coming.had_room(live.request_id))
        if is_newcomer and limit:
            num_left = max(limit - state.drain.num_promised(rank, limit, now), -(-limit // NEWCOMER_SHARE))
            limit, token_limit = num_left, -(-token_limit * num_left // limit)
        num_queued = state.num_queued(rank) + coming.num_of(tier)
        is_long = num_queued + (beside.num_queued(rank) if beside else 0) >= limit
        # A prompt that is larger than the bound alone must not be refused for ever.
        num_tokens = self._num_queued_tokens(rank) + coming.num_tokens_of(tier)
        is_heavy = token_limit > 0 and 0 < num_tokens > token_limit - live.num_tokens
        if not (is_long or is_heavy):
            return None
        num_free = self._room.num_startable(rank, live)
        if num_queued < num_free:
            return None
        num_beside = beside.num_waiting(rank) if beside else 0
        if num_queued - num_free + num_beside >= limit:
            return DropReason.QUEUE_FULL
        return DropReason.QUEUE_TOKENS_FULL if is_heavy else None

    def _num_queued_tokens(self, rank: int) -> int:
        return self._state.num_queued_tokens(rank) + (self.beside.num_queued_tokens(rank) if self.beside else 0)

    def _why_late(self, live: LiveRequest, tier: ServiceTier, now: float) -> DropReason | None:
        """Whether the first token would come after the objective, or the others too slowly, if this tier served the request."""
        state, rank = self._state, self._limits.rank_of(tier)
        if not state.cost.is_fitted:
            return None
        slo, policy = live.request.slo, self._limits.tiers[rank]
        ttft_s = policy.ttft_s if slo.ttft_s is None else slo.ttft_s
        tpot_s = policy.tpot_s if slo.tpot_s is None else slo.tpot_s
        match = state.ledger.match(live.tokens, live.request.cache_salt) if live.can_reuse else None
        num_uncached = len(live.tokens) - state.restorer.reach(live, match.num_tokens if match else 0, now)
        base_s, output_s, token_s = state.cost.coefficients
        alone_s = base_s + num_uncached * token_s
        if alone_s > ttft_s or base_s + output_s > tpot_s:
            best = state.cost.fastest
            is_never = best.first_token_s(num_uncached, self._limits.max_step_tokens) > ttft_s or best.output_s > tpot_s
            return DropReason.SLO_UNREACHABLE if is_never else DropReason.SLO_AT_RISK
        waited_s = max(0.0, now - live.request.arrival_s)
        busy_s = alone_s * (1 + PREFILL_STRETCH) if state.running else alone_s
        prefills = (other for other in state.running if not other.is_decoding and other.urgency <= rank)
        busy_s += token_s * sum(other.num_remaining for other in prefills)
        step_s = state.last_step_s if state.running else 0.0
        if self.beside is not None:
            step_s = max(step_s, self.beside.step_s)
            busy_s *= self.beside.stretch(rank if (top := state.top_rank) is None else min(top, rank))
        if waited_s + self._wait_s(live, rank, now) + busy_s + step_s > ttft_s:
            return DropReason.SLO_AT_RISK
        return None

    def _wait_s(self, live: LiveRequest, rank: int, now: float) -> float:
        """Predicted wait for a place and cells; 0 when both can be had at once.

        Never shorter than in the more urgent tier that it asked for: the rates of two tiers are measured apart, and may disagree.
        """
        num_waiting, drain, wait_s = self._state.num_waiting, self._state.drain, 0.0
        for other in range(rank, live.rank - 1, -1):
            if self._room.can_start(live, other):
                break
            wait_s = max(wait_s, drain.wait_s(other, num_waiting, now) or 0.0)
        return wait_s
