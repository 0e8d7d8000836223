"""Builds one plan: places, then, tier by tier from the most urgent, decodes and prefill chunks while the step has room and time.

    waiting, paused --places--> running:  | rank 0: decodes, chunks | rank 1: ... | rank 3: ... |    sum <= max_step_tokens
                                            a decode that finds no cell preempts exactly one request, perhaps itself

A step of few decodes and nothing else may get drafts on top (`speculation`).

Every "who" and "how much" is a policy in a file of its own; here is only the order in which they are asked.
"""

from __future__ import annotations

from math import inf

from ultrafast.core.step import SequenceWork
from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.segment import SequenceKv
from ultrafast.sched import admission
from ultrafast.sched.budget import StepBudget
from ultrafast.sched.chunks import MIN_CHUNK_TOKENS, Chunk, Prefills, divide
from ultrafast.sched.cost import Row
from ultrafast.sched.kept import choose_loser, is_kept, may_lose
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import arrival_key, choose_next_turn, choose_victim, is_turn_of, turn_key
from ultrafast.sched.places import Places
from ultrafast.sched.state import SchedulerState

_NUM_RANKS = len(ServiceTier)
_QUIET_S = 0.1
"""For so long streams go on without anything else being looked at, from clocks to the age of what is cached."""


class Planner:
    """Turns state into the work of the next step. It moves requests between states; it never advances their tokens.

    Attributes:
        side: a chunk to begin beside the steps, as there is nothing to do now; None = none.
        resume_s: when there will be, while a chunk is under way.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.side: SequenceWork | None = None
        self.resume_s = inf
        self._state = state
        self._ledger = state.ledger
        self._limits = state.limits
        self._places = Places(state)
        self._quiet_until_s = 0.0
        self._quiet_ids: list[str] = []  # who decodes again until then, in the order of the step

    def again(self, now: float) -> tuple[SequenceWork, ...] | None:
        """The next tokens of the same streams, where `build` would come to just those; None: it has to be asked.

        The time between two steps is what streams lose that have the machine to themselves, and nearly all of it is cold memory:
        what is not looked at costs nothing.
        """
        lives = self._state.live
        if now >= self._quiet_until_s or len(lives) != len(self._quiet_ids) or self._state.faults.has_any:
            return None
        if self._ledger.num_free < len(lives):
            return None
        same = map(lives.get, self._quiet_ids)
        decoding = [live for live in same if live is not None and live.sequence is not None and live.is_decoding]
        # Else one has come in the place of one that went, or a copy of KV came to nothing.
        return self._with_drafts(tuple(map(_decode, decoding)), now) if len(decoding) == len(lives) else None

    def build(self, now: float) -> tuple[SequenceWork, ...]:
        """Decide the work of the next step. Calling it again without a `complete` in between plans afresh."""
        work = self._build(now)
        self._quiet_until_s = 0.0
        if self._is_quiet(work):
            self._quiet_ids = [item.request_id for item in work]
            self._quiet_until_s = min(now + _QUIET_S, self._state.execution_deadlines.next_s)
        return work

    def _build(self, now: float) -> tuple[SequenceWork, ...]:
        state = self._state
        self._ledger.tick(now, is_busy=bool(state.running))
        state.cost.num_kv_tokens = self._limits.kv_capacity_tokens - self._ledger.num_free
        state.take_back(now)
        due_ranks = state.shares.due_ranks(item_s(state.cost.coefficients)) if state.shares.has_credit else []
        state.reservations.update(now)
        if self._ledger.levels is not None:
            self._prepare_room()
            state.departing.copy_ahead(state.running, state.paused, now)
        self._places.fill(due_ranks, now)
        if any(state.num_started):
            self._release_idle(now)
        state.restorer.step(state.running, now)
        self.side, self.resume_s = None, inf
        while True:
            eligible = state.restorer.without_loading(state.faults.suspects(state.running) or state.running)
            if (beside := self._beside(eligible, due_ranks, now)) is not None:
                return beside
            has_eligible = bool(eligible)
            work = self._fill_step(eligible, due_ranks, now)
            if work or not has_eligible:
                return self._with_drafts(tuple(work), now)
            # Nobody can advance for want of cells.
            victim = choose_loser(state.holders, self._limits)
            assert victim is not None, "somebody runs"
            assert len(state.holders) > 1, "a request that runs alone fits: it was checked when added"
            state.preempt(victim, now)

    def _is_quiet(self, work: tuple[SequenceWork, ...]) -> bool:
        """Everybody decodes in this step, all of one tier; nothing is to be done in the background, nobody is owed anything."""
        state = self._state
        running = state.running
        if not 0 < len(running) == len(state.live) == len(work) or state.side.is_under_way or state.restorer.is_loading:
            return False
        if state.faults.has_any or self._ledger.has_background or state.shares.has_credit:
            return False
        urgency = running[0].urgency
        return all(live.is_decoding and live.urgency == urgency for live in running)

    def _beside(self, eligible: list[LiveRequest], due_ranks: list[int], now: float) -> tuple[SequenceWork, ...] | None:
        """The step beside a side chunk, which may be empty; None where there is no such chunk and should be none."""
        state, side = self._state, self._state.side
        prompt = None if state.faults.is_isolating or state.faults.slack else side.prompt(eligible, now)
        if prompt is not None:
            lives, resume_s = side.ready(prompt, [live for live in eligible if live is not prompt], due_ranks, now)
            work = self._fill_step(lives, due_ranks, now) if lives else []
            if work:
                return self._with_drafts(tuple(work), now)
            if not lives and (side.chunk is not None or self._propose(prompt)):
                self.resume_s = resume_s
                return ()
        if side.chunk is not None:  # nobody can advance beside it
            state.give_up_side()
        return None

    def _propose(self, prompt: LiveRequest) -> bool:
        """Have a chunk begun, if there are cells for it."""
        chunk = self._state.side.next_chunk(prompt, self._state.followers.first_until(prompt))
        if not self._make_room(len(chunk.tokens) + len(self._state.running)):
            return False
        self.side = chunk
        return True

    def _release_idle(self, now: float) -> None:
        """The prompts that have begun will look at all idle cells with each of their rows: see which of them are worth that."""
        state = self._state
        num_rows = sum([live.num_remaining for live in state.running if not live.is_decoding])
        self._ledger.release_idle(now, ahead_s=state.idle_cell_s(0, num_rows))

    def _prepare_room(self) -> None:
        """What waits will take cells, and what is likely to come may: see that cached leaves can go at once when it does."""
        state = self._state
        num_likely = state.reservations.num_tokens(len(self._limits.tiers))
        if not num_likely and not len(state.waiting):
            return
        heads = [head for rank in range(len(self._limits.tiers)) if (head := state.waiting.head_of(rank)) is not None]
        num_waiting = sum(admission.num_needed(head, 0, self._limits) for head in heads)
        self._ledger.prepare_room(num_waiting, num_likely)

    def _with_drafts(self, work: tuple[SequenceWork, ...], now: float) -> tuple[SequenceWork, ...]:
        state = self._state
        may_guess = not state.faults.is_isolating and not state.faults.slack
        return state.drafting.extend(work, state.live, self._ledger.num_free, now, may_guess=may_guess)

    def _fill_step(self, eligible: list[LiveRequest], due_ranks: list[int], now: float) -> list[SequenceWork]:
        state = self._state
        if len(eligible) == 1 and eligible[0].is_decoding and self._ledger.num_free > state.faults.slack:
            return [_decode(eligible[0])]  # what all of the below comes to
        may_be_long = state.interruptions.are_affordable
        budget = StepBudget(state.cost, self._limits, now, is_alone=len(state.live) == 1, may_be_long=may_be_long)
        groups = _by_urgency(eligible)
        last = max(groups, default=0)
        num_decodes_left = sum([len(decodes) for decodes, _ in groups.values()])
        work: list[SequenceWork] = []
        num_preempted = state.num_preempted
        for urgency, (decodes, prefills) in groups.items():
            if state.num_preempted > num_preempted:  # those who had to give way to more urgent ones are out of it
                decodes, prefills = _with_sequence(decodes), _with_sequence(prefills)
            owed = choose_next_turn(decodes + prefills) if urgency in due_ranks else None
            budget.hold_back(state.reservations.step_share(urgency))
            num_decodes_left -= len(decodes)
            # Beside more urgent work there is not enough for all: a prefill has its turn among the decodes, and then goes first.
            is_prefill_turn = budget.is_limited and is_turn_of(prefills, decodes)
            chosen = [] if is_prefill_turn else self._decodes(self._choose(decodes, owed, budget), budget, now)
            if state.num_preempted > num_preempted:
                prefills = _with_sequence(prefills)
            due_s = _first_due_s(chosen) if prefills or urgency != last else inf
            chunks = self._prefills(prefills, owed, num_decodes_left, budget, now, due_s) if prefills else []
            if is_prefill_turn and not chunks:
                chosen = self._decodes(self._choose(decodes, owed, budget), budget, now)
                due_s = _first_due_s(chosen)
            work += [_decode(live) for live in chosen]
            work += [_work(chunk.live, chunk.num_tokens) for chunk in chunks]
            if urgency != last:
                budget.close_rank(due_s, [chunk.live for chunk in chunks])
        return work

    def _choose(self, decodes: list[LiveRequest], owed: LiveRequest | None, budget: StepBudget) -> list[LiveRequest]:
        """Who decodes: all that fit, in turns, and the one that is owed a step."""
        num_fitting = budget.num_decodes_fitting(len(decodes))
        if num_fitting == len(decodes):
            return sorted(decodes, key=arrival_key)
        chosen = sorted(decodes, key=turn_key)[:num_fitting]
        if owed is not None and owed.is_decoding and owed not in chosen:
            chosen.append(owed)
        return sorted(chosen, key=arrival_key)

    def _decodes(self, decoding: list[LiveRequest], budget: StepBudget, now: float) -> list[LiveRequest]:
        """Those for whom there is a cell; less urgent ones, or some of themselves, may give way."""
        if self._ledger.num_free >= budget.num_tokens + len(decoding) + self._state.faults.slack:
            budget.add_decodes(len(decoding))
            return decoding  # the rule: there are cells for all of them, and nobody has to give way
        chosen: list[LiveRequest] = []
        for live in decoding:
            if live.sequence is not None and self._find_cell(live, budget.num_tokens, now):
                chosen.append(live)
                budget.add_decodes(1)
        return chosen

    def _find_cell(self, live: LiveRequest, num_taken: int, now: float) -> bool:
        """Make sure of one more cell beside those taken in this step. False: `live` itself had to give way, or waits for a copy.

        `live` is among the candidates, so nobody more urgent or older gives way to it; and since decodes are planned in that
        order, nobody who is in the step already does. One that is kept stays where it is instead of giving way.
        """
        state, limits = self._state, self._limits
        while not self._make_room(num_taken + 1):
            assert state.num_holders > 1, "a request that runs alone fits: its length is limited to the pool"
            others = [
                other for other in may_lose(state.holders, live, limits) if self._ledger.num_reclaimable(_sequence(other)) > 0
            ]
            if is_kept(live, limits):
                victim = choose_loser([other for other in others if arrival_key(other) > arrival_key(live)], limits)
            elif all(is_kept(other, limits) for other in others):
                victim = choose_victim([other for other in others if other.urgency > live.urgency] or [live])
            else:
                victim = choose_victim([live, *others])
            if victim is None:
                return False
            if not state.departing.may_leave(victim, live.urgency, state.running):
                return False
            state.preempt(victim, now)
            if victim is live:
                return False
        return True

    def _prefills(
        self,
        prefilling: list[LiveRequest],
        owed: LiveRequest | None,
        num_kept: int,
        budget: StepBudget,
        now: float,
        due_s: float,
    ) -> list[Chunk]:
        if self._limits.fixed_chunk_tokens:
            return self._fit([Chunk(prefilling[0], self._fixed_chunk(prefilling[0]))], budget, now)
        prefills = Prefills(prefilling)
        num_tokens = budget.num_prefill_tokens_fitting(num_kept, budget.slack_s(due_s, prefills), due_s)
        if num_tokens <= 0 and owed is not None and owed in prefilling:
            prefills = Prefills([owed])
            num_tokens = min(MIN_CHUNK_TOKENS, self._limits.max_step_tokens - budget.num_tokens - num_kept)
        return self._fit(divide(num_tokens, prefills, budget.pressed(num_tokens, prefills)), budget, now)

    def _fixed_chunk(self, live: LiveRequest) -> int:
        """The next tokens as they were, or will be, cut each time: the prompt on a grid, the output token by token."""
        num_prompt_left = live.request.num_prompt_tokens - live.num_computed
        return min(self._limits.fixed_chunk_tokens, num_prompt_left) if num_prompt_left > 0 else 1

    def _fit(self, chunks: list[Chunk], budget: StepBudget, now: float) -> list[Chunk]:
        """Cut chunks to the cells that can be had: cached leaves are evicted, and less urgent requests give way."""
        fitting: list[Chunk] = []
        for chunk in chunks:
            while self._room(budget.num_tokens) < chunk.num_tokens and self._preempt_less_urgent(chunk.live, now):
                pass
            num_tokens = min(chunk.num_tokens, self._room(budget.num_tokens))
            if num_tokens > 0 and self._make_room(budget.num_tokens + num_tokens):
                fitting.append(Chunk(chunk.live, num_tokens))
                budget.add_prefill(num_tokens)
        return fitting

    def _preempt_less_urgent(self, live: LiveRequest, now: float) -> bool:
        """Preempt one request that is less urgent than `live` and holds cells of its own; none of those is in the step yet."""
        victim = choose_victim(
            other
            for other in may_lose(self._state.holders, live, self._limits)
            if other.urgency > live.urgency and self._ledger.num_reclaimable(_sequence(other)) > 0
        )
        if victim is None or not self._state.departing.may_leave(victim, live.urgency, self._state.running):
            return False
        self._state.preempt(victim, now)
        return True

    def _room(self, num_taken: int) -> int:
        """Cells for prefill. One that runs alone always tries with one cell: a fault must not stop it for good."""
        room = self._ledger.num_available(None) - num_taken - self._state.faults.slack
        return max(1, room) if self._state.num_holders == 1 else room

    def _make_room(self, num_tokens: int) -> bool:
        slack = self._state.faults.slack if self._state.num_holders > 1 else 0
        if self._ledger.make_room(num_tokens + slack):
            return True
        if self._state.side.chunk is None:
            return False
        self._state.give_up_side()  # nobody gives way while cells are only set aside
        return self._ledger.make_room(num_tokens + slack)


def _by_urgency(eligible: list[LiveRequest]) -> dict[int, tuple[list[LiveRequest], list[LiveRequest]]]:
    """By urgency, the most urgent first: those that decode, and those with more to compute."""
    decodes: tuple[list[LiveRequest], ...] = tuple([] for _ in range(_NUM_RANKS))
    prefills: tuple[list[LiveRequest], ...] = tuple([] for _ in range(_NUM_RANKS))
    for live in eligible:
        (decodes if len(live.tokens) - live.num_computed == 1 else prefills)[live.urgency].append(live)
    return {rank: group for rank, group in enumerate(zip(decodes, prefills, strict=True)) if group[0] or group[1]}


def _with_sequence(lives: list[LiveRequest]) -> list[LiveRequest]:
    return [live for live in lives if live.sequence is not None]


def _first_due_s(decodes: list[LiveRequest]) -> float:
    """When the first of their next tokens is due; infinity = there is none."""
    return min([live.token_due_s for live in decodes], default=inf)


def _decode(live: LiveRequest) -> SequenceWork:
    """The newest token of a request of which nothing else is left to compute."""
    tokens, sequence = live.tokens, live.sequence
    assert sequence is not None, f"{live.request_id} does not run"
    return SequenceWork(live.request_id, sequence.seq_id, live.num_computed, (tokens[-1],), True, len(tokens) - live.num_prompt)


def _work(live: LiveRequest, num_tokens: int) -> SequenceWork:
    start, end = live.num_computed, live.num_computed + num_tokens
    return SequenceWork(
        request_id=live.request_id,
        seq_id=_sequence(live).seq_id,
        start=start,
        tokens=tuple(live.tokens[start:end]),
        samples=end == len(live.tokens),
        output_index=live.num_output,
    )


def _sequence(live: LiveRequest) -> SequenceKv:
    assert live.sequence is not None, f"{live.request_id} does not run"
    return live.sequence


def item_s(coefficients: Row) -> float:
    """What the smallest piece of work costs by itself, seconds: a smallest prefill chunk, or a decode where that is more."""
    _, output_s, token_s = coefficients
    return max(output_s, MIN_CHUNK_TOKENS * token_s)
