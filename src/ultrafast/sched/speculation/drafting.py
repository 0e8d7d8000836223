"""Puts drafts into a planned step and learns from its result.

A step carries drafts only where they cost nobody else anything that matters: no prefill in it, few decodes, cells and batch rows
to spare, and a duration that a step may have anyway. So under load speculation is silent, and it speaks when one or a few
streams have the machine to themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ultrafast.core.step import SequenceWork, StepPlan, StepResult
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.speculation.choice import Offer, choose_lengths
from ultrafast.sched.speculation.ngrams import Continuation
from ultrafast.sched.speculation.step_times import StepTimes
from ultrafast.sched.speculation.track import Track

MAX_DECODES = 3
"""With more decodes in a step, its rows are used well without guesses."""
TARGET_STRETCH = 2.0
PLAIN_STRETCH = 3.0
"""A step of a single decode may take so many times step_target_s, or so many times as long as without drafts where that is more:
nobody waits for it except a new arrival."""
SHARED_PLAIN_STRETCH = 1.5
"""The latter with several decodes, of which one may have no drafts and only wait; the step then stays within step_target_s."""
_MAX_STEPS_BETWEEN_PLAIN = 32
"""So often a step runs without drafts, to measure again what it takes: the yardstick of the gain."""
_PAUSE_AFTER_FAULT = 16
_FORGET = 0.98


@dataclass(frozen=True, slots=True)
class _Guess:
    live: LiveRequest
    track: Track
    found: Continuation


class Drafting:
    """The policy and its memory; one per scheduler.

    Attributes:
        times: what steps of decodes take.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self.times = StepTimes()
        self._guesses: dict[str, _Guess] = {}
        self._num_since_plain = 0
        self._num_paused = 0
        self._plain_s = 0.0
        self._spent_s = 0.0

    @property
    def gain(self) -> float | None:
        """How many times as many tokens per second steps with drafts make, lately; None = not measured yet."""
        return self._plain_s / self._spent_s if self._spent_s else None

    @property
    def is_enabled(self) -> bool:
        return self._limits.enable_speculation and self._limits.can_trim

    def extend(
        self, work: tuple[SequenceWork, ...], live_of: Mapping[str, LiveRequest], num_free_cells: int
    ) -> tuple[SequenceWork, ...]:
        """Add drafts to the decodes of a step, or return it as it is. `num_free_cells`: free before this step, no eviction."""
        self._guesses = {}
        if not self._may_guess(work):
            return work
        room = min(num_free_cells, self._limits.max_step_tokens) - len(work)
        guesses = [guess for item in work if (guess := self._guess(live_of[item.request_id], room)) is not None]
        if not guesses:
            return work
        offers = [Offer(len(guess.found.tokens), guess.track.probability(guess.found)) for guess in guesses]
        lengths = choose_lengths(offers, len(work), room, self._limit_s(len(work)), self.times.predict_s)
        drafts = {}
        for guess, length in zip(guesses, lengths, strict=True):
            if length:
                self._guesses[guess.live.request_id] = guess
                drafts[guess.live.request_id] = guess.found.tokens[:length]
            else:
                guess.track.pass_over()
        return tuple(replace(item, drafts=drafts[item.request_id]) if item.request_id in drafts else item for item in work)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn from a step that ran."""
        if not plan.work or not _is_all_decodes(plan.work):
            return
        self.times.observe(plan.num_tokens, result.duration_s)
        if not plan.num_drafts:
            self._num_since_plain = 0
            return
        self._num_since_plain += 1
        num_draws = dict.fromkeys((item.request_id for item in plan.work), 0)
        for drawn in result.sampled:
            num_draws[drawn.request_id] += 1
        self._book_acceptance(plan.work, num_draws)
        self._book_gain(len(plan.work), sum(num_draws.values()), result.duration_s)

    def step_failed(self, plan: StepPlan) -> bool:
        """A step did not run. True when it had drafts: the same step without them is the remedy to try first."""
        if not plan.num_drafts:
            return False
        self._num_paused = _PAUSE_AFTER_FAULT
        return True

    def _may_guess(self, work: tuple[SequenceWork, ...]) -> bool:
        if not self.is_enabled or not 0 < len(work) <= MAX_DECODES or not _is_all_decodes(work):
            return False
        if self._num_paused:
            self._num_paused -= 1
            return False
        return self.times.measured_s(len(work)) is not None and self._num_since_plain < _MAX_STEPS_BETWEEN_PLAIN

    def _guess(self, live: LiveRequest, room: int) -> _Guess | None:
        if not live.request.may_speculate:
            return None
        if live.speculation is None:
            live.speculation = Track()
        # The draw behind the last draft is a token too, and none may be drawn that no plain step would draw.
        found = live.speculation.look_up(live.tokens, min(room, _num_missing(live, self._limits) - 1))
        return _Guess(live, live.speculation, found) if found else None

    def _limit_s(self, num_decodes: int) -> float:
        plain_s, target_s = self.times.predict_s(num_decodes), self._limits.step_target_s
        if num_decodes == 1:
            return max(TARGET_STRETCH * target_s, PLAIN_STRETCH * plain_s)
        return max(target_s, SHARED_PLAIN_STRETCH * plain_s)

    def _book_acceptance(self, work: Sequence[SequenceWork], num_draws: Mapping[str, int]) -> None:
        for item in work:
            guess = self._guesses.get(item.request_id)
            if guess is None or not item.drafts:
                continue
            num_accepted = max(0, num_draws[item.request_id] - 1)
            guess.track.observe(guess.found.num_matched, len(item.drafts), num_accepted)

    def _book_gain(self, num_decodes: int, num_tokens: int, duration_s: float) -> None:
        step_s = self.times.measured_s(num_decodes)
        if step_s is None or duration_s <= 0:
            return
        plain_s = step_s * num_tokens / num_decodes
        for guess in self._guesses.values():
            guess.track.observe_gain(plain_s, duration_s)
        self._plain_s = self._plain_s * _FORGET + plain_s
        self._spent_s = self._spent_s * _FORGET + duration_s


def _is_all_decodes(work: Sequence[SequenceWork]) -> bool:
    return all(item.samples and len(item.tokens) == 1 for item in work)


def _num_missing(live: LiveRequest, limits: SchedulerLimits) -> int:
    """Tokens until the request is at one of its limits; the same limits as `outcome.is_at_limit`."""
    length = len(live.tokens)
    return min(
        live.request.params.max_tokens - live.num_output,
        limits.max_request_tokens - length,
        limits.kv_capacity_tokens + 1 - length,
    )
