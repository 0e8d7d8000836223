"""Puts drafts into a planned step and learns from its result.

A step carries drafts only where they cost nobody else anything that matters: everybody alive is in it, no prefill, few decodes,
cells and batch rows to spare, and a duration that a step may have anyway. So under load speculation is silent, and it speaks when
one or a few streams have the machine to themselves.

Guesses come from the text where it repeats itself, which costs nothing; where it does not, or where too few of them pay, from the
draft model, if there is one:

    extend  -> work, `draft_plan`      drafts from the text are in the work already
    drafted -> work                    with those that the engine got from the draft model meanwhile
    observe                            what became of them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ultrafast.core.draft import NO_DRAFTING, DraftPlan, DraftResult
from ultrafast.core.request import RequestState
from ultrafast.core.step import SequenceWork, StepPlan, StepResult
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.speculation.choice import Choice, Drafted, Offer, choose_lengths
from ultrafast.sched.speculation.gain import Gain
from ultrafast.sched.speculation.model_drafts import ModelDrafts
from ultrafast.sched.speculation.step_times import StepTimes
from ultrafast.sched.speculation.track import MAX_DRAFTS, Track, kind_of
from ultrafast.sched.speculation.trust import Trust
from ultrafast.sched.worked import Worked

MAX_DECODES = 3
"""With more decodes in a step, its rows are used well without guesses."""
TARGET_STRETCH = 2.0
PLAIN_STRETCH = 3.0
"""A step of a single decode may take so many times step_target_s, or so many times as long as without drafts where that is more:
nobody waits for it except a new arrival."""
SHARED_PLAIN_STRETCH = 1.5
"""The latter with several decodes, of which one may have no drafts and only wait; the step then stays within step_target_s. And
for any step in which the draft model only reads."""
_MAX_STEPS_BETWEEN_PLAIN = 32
"""So often a step runs without drafts, to measure again what it takes: the yardstick of the gain."""
_PAUSE_AFTER_FAULT = 16


@dataclass(frozen=True, slots=True)
class _Guess:
    """A way to guess for one request; `tokens` is None where the draft model has still to say them."""

    live: LiveRequest
    trust: Trust
    kind: int
    offer: Offer
    tokens: tuple[int, ...] | None


class Drafting:
    """The policy and its memory; one per scheduler.

    Attributes:
        times: what steps of decodes take.
        model: the draft model as far as it is known here; None = there is none, or it broke.
        gain, model_gain: what drafts from the text and from the draft model are worth.
        drafting_s: what the draft model took before this step, seconds.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self.times = StepTimes()
        self.model = ModelDrafts(limits.draft) if limits.draft is not None and self.is_enabled else None
        self.gain = Gain()
        self.model_gain = Gain()
        self._guesses: dict[str, _Guess] = {}
        self.drafting_s = 0.0
        self._num_since_plain = 0
        self._num_paused = 0

    @property
    def is_enabled(self) -> bool:
        """The one place that says whether this engine may guess at all."""
        return self._limits.enable_speculation and self._limits.can_trim

    @property
    def draft_plan(self) -> DraftPlan:
        """What the draft model is to do before the step that was planned last."""
        return self.model.plan if self.model is not None else NO_DRAFTING

    def extend(
        self,
        work: tuple[SequenceWork, ...],
        live_of: Mapping[str, LiveRequest],
        num_free_cells: int,
        now: float,
        *,
        may_guess: bool = True,
    ) -> tuple[SequenceWork, ...]:
        """Add drafts to the decodes of a step, or return it as it is. To be called for each step.

        `live_of` has every request alive; `num_free_cells` are free before this step, without eviction; `may_guess` is False
        while faults are being looked into.
        """
        if self._guesses:
            self._guesses = {}
        self.drafting_s = 0.0
        if self.model is not None:
            self.model.begin_plan({name for name, live in live_of.items() if live.state is RequestState.RUNNING})
        if not may_guess or len(live_of) > len(work) or not self._may_guess(work):
            return work
        room = min(num_free_cells, self._limits.max_step_tokens) - len(work)
        lives = [live for item in work if (live := live_of[item.request_id]).request.may_speculate]
        from_text = {live.request_id: guess for live in lives if (guess := self._guess(live, room)) is not None}
        if not from_text and self.model is None:
            return work
        limit_s = self._limit_s([live_of[item.request_id] for item in work], now)
        chosen = self._choose(lives, from_text, len(work), room, limit_s)
        self._guesses = {guess.live.request_id: guess for guess, length in chosen if length}
        drafts = {}
        for guess, length in chosen:
            if not length:
                guess.trust.pass_over()
            elif guess.tokens is not None:
                drafts[guess.live.request_id] = guess.tokens[:length]
            elif self.model is not None:
                self.model.ask(guess.live, length)
        self._read_ahead(lives, len(work), limit_s, [(guess, length) for guess, length in chosen if length])
        return _with_drafts(work, drafts)

    def drafted(self, plan: StepPlan, result: DraftResult) -> StepPlan:
        """Take what the draft model said; returns the plan with its guesses."""
        assert self.model is not None, "there is no draft model"
        self.drafting_s = result.duration_s
        self.model.observe_drafting(plan.draft, result)
        if self.model.is_broken:
            self.model = None
        return plan._replace(work=_with_drafts(plan.work, dict(result.drafts)))

    def observe(self, plan: StepPlan, worked: Worked, result: StepResult) -> None:
        """Learn from a step that ran; its duration is without that of drafting."""
        if worked.num_decodes < len(plan.work):
            return
        self.times.observe(worked.num_decodes + worked.num_drafts, result.duration_s)
        if not worked.num_drafts:
            self._num_since_plain = 0
            self.model_gain.book(0.0, self.drafting_s)
            return
        self._num_since_plain += 1
        num_draws = Counter(drawn.request_id for drawn in result.sampled)
        self._book_acceptance(plan.work, num_draws)
        if self.model is not None:
            self.model.observe_step(plan, num_draws)
        self._book_gain(plan, num_draws.total(), result.duration_s + self.drafting_s)

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

    def _choose(
        self, lives: Sequence[LiveRequest], from_text: Mapping[str, _Guess], num_decodes: int, room: int, limit_s: float
    ) -> list[tuple[_Guess, int]]:
        """Every way to guess that was looked at, and how many drafts it gets; each request gets them from one way at most."""
        guesses = [guess for live in lives if (guess := from_text.get(live.request_id) or self._ask_model(live, room, lives))]
        lengths = self._lengths([guess.offer for guess in guesses], num_decodes, room, limit_s).lengths
        passed: list[tuple[_Guess, int]] = []
        for i, (guess, length) in enumerate(zip(guesses, lengths, strict=True)):
            other = self._ask_model(guess.live, room, lives) if guess.tokens is not None and not length else None
            if other is not None:
                passed.append((guess, 0))
                guesses[i] = other
        if passed:
            lengths = self._lengths([guess.offer for guess in guesses], num_decodes, room, limit_s).lengths
        return passed + list(zip(guesses, lengths, strict=True))

    def _lengths(self, offers: Sequence[Offer], num_decodes: int, room: int, limit_s: float) -> Choice:
        if self.model is None:
            return choose_lengths(offers, num_decodes, room, limit_s, self.times.predict_s)
        return choose_lengths(offers, num_decodes, room, limit_s, self.times.predict_s, self.model.times.drafting_s)

    def _guess(self, live: LiveRequest, room: int) -> _Guess | None:
        if live.speculation is None:
            live.speculation = Track()
        track = live.speculation
        found = track.look_up(live.tokens, self._max_drafts(live, room))
        if found is None:
            return None
        kind = kind_of(found)
        return _Guess(live, track, kind, Offer(len(found.tokens), track.probability(kind)), found.tokens)

    def _ask_model(self, live: LiveRequest, room: int, lives: Sequence[LiveRequest]) -> _Guess | None:
        if self.model is None:
            return None
        trust = self.model.trust_of(live)
        if trust.is_off:
            trust.pass_over()
            return None
        offer = self.model.offer(live, self._max_drafts(live, room), {other.request_id for other in lives})
        return _Guess(live, trust, 0, offer, None) if offer is not None else None

    def _read_ahead(
        self, lives: Sequence[LiveRequest], num_decodes: int, limit_s: float, chosen: Sequence[tuple[_Guess, int]]
    ) -> None:
        """Let the draft model read a piece of the first text that it is far behind with and that is worth it."""
        if self.model is None:
            return
        plain_s = self.times.predict_s(num_decodes)
        asked = [Drafted(guess.offer.num_unread, length) for guess, length in chosen if guess.tokens is None]
        step_s = self.times.predict_s(num_decodes + sum(length for _, length in chosen)) + self.model.times.drafting_s(asked)
        rest_s = min(limit_s, max(self._limits.step_target_s, SHARED_PLAIN_STRETCH * plain_s)) - step_s
        for live in lives:
            trust = self.model.trust_of(live)
            if trust.is_off or live.request_id in self._guesses or not self.model.is_behind(live):
                continue
            # What a step will gain once the text is read, and the draws of the last step with it.
            offer = Offer(MAX_DRAFTS, trust.probability(0), num_unread=2)
            gain = self._lengths([offer], num_decodes, MAX_DRAFTS, limit_s).gain
            if self.model.is_worth_reading(live, gain, plain_s, live.max_length - len(live.tokens)):
                self.model.read(live, rest_s, {other.request_id for other in lives})
                return
            trust.pass_over()

    def _max_drafts(self, live: LiveRequest, room: int) -> int:
        # The draw behind the last draft is a token too, and none may be drawn that no plain step would draw.
        return min(room, live.max_length - len(live.tokens) - 1)

    def _limit_s(self, lives: Sequence[LiveRequest], now: float) -> float:
        plain_s, target_s = self.times.predict_s(len(lives)), self._limits.step_target_s
        if len(lives) == 1:
            return max(TARGET_STRETCH * target_s, PLAIN_STRETCH * plain_s)
        # Nobody's next token gets late by the guesses of others. One that is late in any case bounds nothing.
        slacks_s = [live.last_token_s + live.tpot_s - now for live in lives]
        in_time_s = [slack_s for slack_s in slacks_s if slack_s >= plain_s]
        return min([max(target_s, SHARED_PLAIN_STRETCH * plain_s), *in_time_s])

    def _book_acceptance(self, work: Sequence[SequenceWork], num_draws: Mapping[str, int]) -> None:
        for item in work:
            guess = self._guesses.get(item.request_id)
            if guess is not None and item.drafts:
                guess.trust.observe(guess.kind, len(item.drafts), max(0, num_draws[item.request_id] - 1))

    def _book_gain(self, plan: StepPlan, num_tokens: int, duration_s: float) -> None:
        num_decodes = len(plan.work)
        step_s = self.times.measured_s(num_decodes)
        if step_s is None or duration_s <= 0:
            return
        plain_s = step_s * num_tokens / num_decodes
        for guess in self._guesses.values():
            guess.trust.observe_gain(plain_s, duration_s)
        is_of_model = any(guess.tokens is None for guess in self._guesses.values())
        (self.model_gain if is_of_model else self.gain).book(plain_s, duration_s)


def _with_drafts(work: tuple[SequenceWork, ...], drafts: Mapping[str, tuple[int, ...]]) -> tuple[SequenceWork, ...]:
    return tuple(item._replace(drafts=drafts[item.request_id]) if drafts.get(item.request_id) else item for item in work)


def _is_all_decodes(work: Sequence[SequenceWork]) -> bool:
    return all(item.is_decode for item in work)
