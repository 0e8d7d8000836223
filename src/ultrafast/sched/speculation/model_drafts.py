"""The draft model as a source of guesses: what to ask of it, and what its answers teach.

It costs a forward pass for each token that it guesses, so it is asked only where repetitions have nothing to offer and where its
measured passes are cheap enough for its measured rightness. Before it can guess it must have read the text:

    far behind --read a piece per step, if the rest of the request is worth it--> up to date --> guess, step, guess, step ...
"""

from __future__ import annotations

from collections.abc import Collection

from ultrafast.core.draft import DraftItem, DraftPlan, DraftResult
from ultrafast.core.step import StepPlan, StepResult
from ultrafast.sched.limits import DraftLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.speculation.acceptance import Acceptance
from ultrafast.sched.speculation.choice import MIN_GAIN, Offer
from ultrafast.sched.speculation.draft_kv import DraftKv
from ultrafast.sched.speculation.draft_times import DraftTimes
from ultrafast.sched.speculation.track import MAX_DRAFTS
from ultrafast.sched.speculation.trust import Trust

MAX_UNREAD = 32
"""A request whose text the draft model has read but for so many tokens can guess at once: the first pass reads them, for all
requests together."""
_PRIOR = 0.7
"""Acceptance before anything was seen; later requests start from what earlier ones showed."""
_MIN_EXPECTED_TOKENS = 64


class ModelDrafts:
    """Policy and memory of the draft model; one per engine.

    Attributes:
        kv, times: see there.
        is_broken: the engine said that it cannot be used any more.
    """

    def __init__(self, limits: DraftLimits) -> None:
        self._limits = limits
        self._max_unread = min(MAX_UNREAD, limits.max_pass_tokens // limits.num_sequences)
        self.kv = DraftKv(limits)
        self.times = DraftTimes()
        self.is_broken = False
        self._acceptance = Acceptance((_PRIOR,))
        self._items: list[DraftItem] = []

    @property
    def plan(self) -> DraftPlan:
        return DraftPlan(self.kv.freed, tuple(self._items))

    def begin_plan(self, request_ids: Collection[str]) -> None:
        """A new step is planned: drop what was wanted for the last one, and the KV of requests not among these."""
        self._items = []
        self.kv.retain(request_ids)

    def trust_of(self, live: LiveRequest) -> Trust:
        if live.draft_trust is None:
            live.draft_trust = Trust((self._acceptance.probability(0),))
        return live.draft_trust

    def num_unread(self, live: LiveRequest) -> int:
        return len(live.tokens) - self.kv.num_right(live.request_id)

    def is_behind(self, live: LiveRequest) -> bool:
        """It has to read on before it can guess for this request."""
        return self.num_unread(live) > self._max_unread

    def offer(self, live: LiveRequest, max_drafts: int, kept: Collection[str]) -> Offer | None:
        """What the model could guess for a request in this step: None while it is far behind, or when the text is too long."""
        max_drafts = min(max_drafts, MAX_DRAFTS, self._limits.max_request_tokens - len(live.tokens))
        if self.is_behind(live) or max_drafts < 1:
            return None
        if not self.kv.open(live.request_id, len(live.tokens) + max_drafts - 1, kept):
            return None
        return Offer(max_drafts, self.trust_of(live).probability(0), self.num_unread(live))

    def ask(self, live: LiveRequest, max_drafts: int) -> None:
        """Guess for a request to which `offer` gave an offer in this step."""
        self._read(live, len(live.tokens), max_drafts)

    def read(self, live: LiveRequest, limit_s: float, kept: Collection[str]) -> None:
        """Read the next piece of a text that is far behind, within `limit_s`. The last token is left for the first guess."""
        num_tokens = min(self.num_unread(live) - 1, self.times.tokens_within(limit_s), self._limits.max_pass_tokens)
        end = self.kv.num_right(live.request_id) + num_tokens
        if num_tokens > 0 and self.kv.open(live.request_id, end, kept):
            self._read(live, end, 0)

    def is_worth_reading(self, live: LiveRequest, gain: float, plain_s: float, num_missing: int) -> bool:
        """Whether what guessing would save on the rest of the request is more than what reading its text costs.

        `gain` is expected once the text is read; `plain_s` is a step without drafts, seconds. `num_missing` tokens are left until
        the request is at a limit. That is seldom how many come: a text is expected to go on for as long as it went on so far.
        """
        if gain < MIN_GAIN or len(live.tokens) + MAX_DRAFTS > self._limits.max_request_tokens:
            return False
        num_expected = min(num_missing, max(_MIN_EXPECTED_TOKENS, live.num_output))
        return num_expected * plain_s * (1 - 1 / gain) > self.times.pass_s(self.num_unread(live))

    def observe_drafting(self, plan: DraftPlan, result: DraftResult) -> None:
        """Book what was read and guessed; only the text itself is known to be right yet."""
        self.is_broken = self.is_broken or result.is_broken
        self.kv.emptied(plan.freed)
        drafts = dict(result.drafts)
        for item in plan.items:
            end = item.start + len(item.tokens)
            self.kv.wrote(item.request_id, end, end + max(0, len(drafts.get(item.request_id, ())) - 1))
        for one in result.passes:
            self.times.observe(one)

    def observe_step(self, plan: StepPlan, num_draws: dict[str, int]) -> None:
        """Learn how many guesses were right; those in KV then need not be read again."""
        asked = asked_ids(plan.draft)
        for item in plan.work:
            if item.request_id in asked and item.drafts:
                num_accepted = max(0, num_draws[item.request_id] - 1)
                self._acceptance.observe(0, len(item.drafts), num_accepted)
                self.kv.confirm(item.request_id, item.start + len(item.tokens) + num_accepted)

    def _read(self, live: LiveRequest, end: int, max_drafts: int) -> None:
        start, seq_id = self.kv.num_right(live.request_id), self.kv.seq_id(live.request_id)
        tokens = tuple(live.tokens[start:end])
        self._items.append(DraftItem(live.request_id, seq_id, start, tokens, max_drafts, live.num_output))


def asked_ids(plan: DraftPlan) -> set[str]:
    """The requests for which the draft model was to guess."""
    return {item.request_id for item in plan.items if item.max_drafts}


def num_model_tokens(plan: StepPlan, result: StepResult) -> tuple[int, int]:
    """Guesses of the draft model in a step that ran, and those of them that were right."""
    if not plan.draft.items:
        return 0, 0
    draws = [drawn.request_id for drawn in result.sampled]
    asked = asked_ids(plan.draft)
    items = [item for item in plan.work if item.request_id in asked and item.drafts]
    num_accepted = sum(max(0, draws.count(item.request_id) - 1) for item in items)
    return sum(len(item.drafts) for item in items), num_accepted
