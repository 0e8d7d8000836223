"""The long prompt that is computed beside the steps: which one it is, and when a step is due meanwhile.

    streams     |dec|            |dec|            |dec|            each when the first of their tokens is due, all in one step
    prompt          ~~~~~~~~~~~~~     ~~~~~~~~~~~~     ~~~~~       chunks in a context of their own, suspended for each step
    newcomer                                ^|chunk|dec|           who is more urgent, or shorter, waits for nothing

In one batch with streams a chunk can only be as long as the time until the next token is due, and on a CPU the tokens of a short
chunk are dear (attention of few rows, fixed cost of a step). Beside them it is as long as it likes. That pays while the decodes
alone take a small part of the time between two tokens, and a chunk among them would be short; else all go into one batch.

Nobody starves: of several long prompts the shortest goes first, but every fourth chunk is of the one whose first token is due
first, and so are all while it would be late otherwise; shorter prompts of its tier leave the prompt a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from ultrafast.core.step import SequenceWork
from ultrafast.sched.budget import PREFILL_STRETCH
from ultrafast.sched.chunks import DECODE_STRETCH, FIRST_DUE_SHARE, due_key, next_length
from ultrafast.sched.cost import CostModel
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest

CHUNK_TOKENS = 256
"""What is lost at most when the chunk is broken off; longer ones are not cheaper, and a step waits for one operation of it."""
_LONG_CHUNK_TOKENS = 256
"""Where a chunk of so many tokens fits between two tokens of the streams, it can as well ride in one batch with them."""
_MAX_DECODE_SHARE = 1 / 3
"""Of the time between two tokens that the decodes may take by themselves: a row in a chunk's batch is cheaper than one alone."""
_MAX_PREFIX_RATIO = 8
"""A prefix so many times as long as what is left is not copied into the other context: streams would wait for that."""
_SHORTER_SHARE = 1 / 3
"""After a step with shorter prompts of its tier the prompt has the machine for so much of that step's time."""
_LATENESS = 0.01
"""A step is up to one operation late: about so much of what its whole chunk takes."""


class Ready(NamedTuple):
    """Who is to be in a step now (nobody: the chunk goes on), and otherwise when somebody will be, seconds."""

    lives: list[LiveRequest]
    resume_s: float = inf


class Side:
    """The chunk under way, and the rules. Owned by the scheduler's state.

    Attributes:
        chunk: what is being computed; None = nothing, or what nobody wants any more. live: whose it is.
        is_under_way: the engine has not ended the chunk yet: no other one can begin.
        resumed_s: since when it has had, or could have had, the machine: the end of the last step.
        booked_s: up to when the time of the chunk under way has been booked.
        prefill_s: how long that step took, if it had a prefill.
        unfit_id: a request whose KV could not be moved.
    """

    def __init__(self, limits: SchedulerLimits, cost: CostModel) -> None:
        self._limits = limits
        self._cost = cost
        self._longest_pace_s = DECODE_STRETCH * limits.step_target_s
        self._latest_id: str | None = None
        self._num_begun = 0
        self.chunk: SequenceWork | None = None
        self.live: LiveRequest | None = None
        self.is_under_way = False
        self.resumed_s = self.booked_s = 0.0
        self.prefill_s = 0.0
        self.unfit_id: str | None = None

    def begin(self, live: LiveRequest, chunk: SequenceWork, now: float) -> None:
        self.live, self.chunk, self.booked_s = live, chunk, now
        self.is_under_way = True
        self._latest_id = live.request_id
        self._num_begun += 1

    def step_finished(self, now: float, prefill_s: float) -> None:
        """`prefill_s`: how long the step took if it had a prefill, else 0."""
        self.resumed_s = self.booked_s = now
        self.prefill_s = prefill_s

    def give_up(self) -> None:
        """Nobody wants the chunk any more: the engine breaks it off."""
        self.live = self.chunk = None

    def prompt(self, eligible: Sequence[LiveRequest], now: float) -> LiveRequest | None:
        """Whose chunk is under way; else whose should be, of the most urgent long prompts. None: nobody's."""
        if self.live is not None:
            return self.live
        if not self._limits.max_side_tokens or self.is_under_way or len(eligible) < 2 or not self._cost.is_fitted:
            return None
        base_s, output_s, _ = self._cost.coefficients
        longest_s = _MAX_DECODE_SHARE * self._longest_pace_s
        prompts, decodes = [], []
        for live in eligible:  # hundreds may be there, and among so many this ends soon
            num_left = live.num_remaining
            if num_left == 1:
                decodes.append(live)
                if base_s + output_s * len(decodes) > longest_s:
                    return None
            elif self._is_long(live, num_left):
                prompts.append(live)
        if not prompts or not decodes:
            return None
        top = min([live.urgency for live in prompts])
        first = self._first([live for live in prompts if live.urgency == top], now)
        beside = [live for live in decodes if live.urgency <= top]
        return first if beside and self._pays(beside) else None

    def _first(self, prompts: list[LiveRequest], now: float) -> LiveRequest:
        """The shortest; in its turn, or if it can be in time only so, the one whose first token is due first."""
        first_due = min(prompts, key=due_key)
        needed_s = self._cost.predict_s(0, first_due.num_remaining)
        slack_s = first_due.deadline_s - now
        is_pressed = needed_s <= slack_s < needed_s * (1 + PREFILL_STRETCH) + self._cost.predict_s(0, CHUNK_TOKENS)
        if is_pressed or self._num_begun % FIRST_DUE_SHARE == FIRST_DUE_SHARE - 1:
            return first_due
        return min(prompts, key=_turn_key)

    def next_chunk(self, live: LiveRequest, until: int | None) -> SequenceWork:
        """All but the last token at most: the one that draws is computed in a step.

        `until`: somebody waits for the first so many tokens.
        """
        assert live.sequence is not None, f"{live.request_id} does not run"
        begin = live.num_computed
        end = begin + next_length(live.num_remaining - 1, CHUNK_TOKENS)
        if until is not None and begin < until < end:
            end = until
        return SequenceWork(live.request_id, live.sequence.seq_id, begin, tuple(live.tokens[begin:end]), samples=False)

    def ready(self, prompt: LiveRequest, others: Sequence[LiveRequest], due_ranks: Sequence[int], now: float) -> Ready:
        """Who of the others goes before the prompt now.

        Prefills that are more urgent go at once, with all decodes, and so does what its tier is owed; shorter ones nearly so;
        decodes go when the first of their tokens is due. Other prefills wait until the prompt is done. A prompt whose own tier is
        owed time gets it.
        """
        decodes = [live for live in others if live.is_decoding]
        if prompt.urgency in due_ranks:
            return Ready([], now + max(self._step_s(1), 1e-3))
        prefills = [live for live in others if not live.is_decoding]
        if any(live.urgency < prompt.urgency or live.urgency in due_ranks for live in prefills):
            key = _turn_key(prompt)
            return Ready(decodes + [live for live in prefills if _turn_key(live) < key or live.urgency in due_ranks])
        shorter = [live for live in prefills if live.urgency == prompt.urgency and live.num_remaining < prompt.num_remaining]
        shorter_s = self.resumed_s + _SHORTER_SHARE * self.prefill_s if shorter else inf
        if now >= shorter_s:
            return Ready(decodes + shorter)
        begin_s = self._step_begin_s(prompt, decodes) if decodes else inf
        return Ready(decodes) if now >= begin_s else Ready([], min(begin_s, shorter_s))

    def _step_begin_s(self, prompt: LiveRequest, decodes: Sequence[LiveRequest]) -> float:
        """When the next step of decodes alone must begin for all to be in time.

        Those of the prompt's own tier leave it half of the time, less urgent ones three quarters.
        """
        step_s = self._step_s(len(decodes))
        top = min([live.urgency for live in decodes])
        spacing = 0.0 if top < prompt.urgency else 1.0 if top == prompt.urgency else 3.0
        waiting = [live for live in decodes if live.urgency == top] if top > prompt.urgency else decodes
        due_s = min([min(live.token_due_s, live.last_token_s + self._longest_pace_s) for live in waiting])
        lateness_s = _LATENESS * self._cost.predict_s(0, CHUNK_TOKENS)
        return max(due_s - step_s - lateness_s, self.resumed_s + spacing * step_s)

    def _pays(self, decodes: Sequence[LiveRequest]) -> bool:
        gap_s = min([min(live.tpot_s, self._longest_pace_s) for live in decodes])
        step_s = self._step_s(len(decodes))
        token_s = self._cost.coefficients[2]
        is_short = step_s <= _MAX_DECODE_SHARE * gap_s
        return is_short and gap_s - step_s < _LONG_CHUNK_TOKENS * token_s

    def _is_long(self, live: LiveRequest, num_left: int) -> bool:
        if len(live.tokens) > self._limits.max_side_tokens or live.request_id == self.unfit_id:
            return False
        if live.request_id == self._latest_id:
            return True  # what is there is finished there
        return num_left >= max(self._limits.min_side_tokens, live.num_computed // _MAX_PREFIX_RATIO)

    def _step_s(self, num_decodes: int) -> float:
        return self._cost.predict_s(num_decodes, 0)


def _turn_key(live: LiveRequest) -> tuple[int, int, int]:
    """More urgent before less, then shorter before longer."""
    return (live.urgency, live.num_remaining, live.order)
