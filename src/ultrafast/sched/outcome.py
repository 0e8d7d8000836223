"""Books one step's result: computed tokens, drawn tokens, ends, and the three ways in which a step can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ultrafast.core.events import DEAD_END, PrefillChunk, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason
from ultrafast.core.step import SampledToken, SequenceWork, StepPlan, StepResult, StepStatus
from ultrafast.kv.segment import SequenceKv
from ultrafast.sched.kept import choose_loser
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.speculation.model_drafts import num_model_tokens
from ultrafast.sched.state import SchedulerState
from ultrafast.sched.worked import Worked


def book(state: SchedulerState, plan: StepPlan, worked: Worked, result: StepResult, now: float) -> None:
    """Advance the state by one step; events go to `state.emit`.

    A FATAL result changes nothing: the engine is restarted, and whoever restarts it submits the live requests again. Nor does
    an INTERRUPTED one: the same work is planned again, after what it was broken off for.
    """
    if result.status is StepStatus.OK:
        _advance(state, worked, result, now)
    elif result.status in (StepStatus.FATAL, StepStatus.INTERRUPTED) or state.drafting.step_failed(plan):
        return
    elif result.status is StepStatus.OUT_OF_KV:
        _give_way(state, plan.num_tokens, now)
    elif result.status is StepStatus.INVALID:
        _isolate(state, worked, now)


def _held(live: LiveRequest, item: SequenceWork) -> SequenceKv | None:
    """The sequence that the work was planned on; None when the request moved since."""
    sequence = live.sequence
    return sequence if sequence is not None and sequence.seq_id == item.seq_id else None


def _advance(state: SchedulerState, worked: Worked, result: StepResult, now: float) -> None:
    failed = dict(result.failed)
    draws = _draws_by_request(result.sampled)
    if state.faults.has_any:
        state.faults.step_succeeded([live for live, item in worked.pairs if _held(live, item)])
    has_followers = len(state.followers) > 0
    for live, item in worked.pairs:
        sequence = _held(live, item)
        if sequence is None:
            continue
        drawn = draws.get(item.request_id, ())
        if item.request_id not in failed:
            assert bool(drawn) == item.samples, f"{len(drawn)} draws for {item.request_id}, which did not fail"
            tokens = item.tokens  # and right drafts: those are output that is taken next
            if len(drawn) > 1:
                tokens += item.drafts[: len(drawn) - 1]
            state.ledger.extend(sequence, tokens)
            if live.num_computed < live.num_once:
                live.num_recomputed += min(len(tokens), live.num_once - live.num_computed)
            live.num_computed += len(tokens)
            live.total_computed += len(tokens)
            live.last_run_s = now
            if has_followers:
                state.release_followers(live)
        for one in drawn:
            assert live.sequence is not None, f"{live.request_id} got a token after its end"
            _take_token(state, live, one, now)
        if item.request_id in failed:
            code = DEAD_END if item.request_id in result.dead_ends else None
            state.finish(live, FinishReason.ERROR, now, failed[item.request_id], error_code=code)


def _draws_by_request(sampled: Sequence[SampledToken]) -> Mapping[str, Sequence[SampledToken]]:
    single = {drawn.request_id: (drawn,) for drawn in sampled}
    if len(single) == len(sampled):
        return single
    draws: dict[str, list[SampledToken]] = {}
    for drawn in sampled:
        draws.setdefault(drawn.request_id, []).append(drawn)
    return draws


def _take_token(state: SchedulerState, live: LiveRequest, drawn: SampledToken, now: float) -> None:
    if drawn.is_end:
        state.finish(live, FinishReason.STOP, now)
        return
    tokens = live.tokens
    tokens.append(drawn.token)
    live.last_token_s = now
    if live.first_token_s is None:
        live.first_token_s = now
    state.emit(TokenProduced(live.request_id, drawn.token, drawn.logprobs))
    if drawn.is_complete:
        state.finish(live, FinishReason.STOP, now)
    elif len(tokens) >= live.max_length:
        state.finish(live, FinishReason.LENGTH, now)


def _give_way(state: SchedulerState, num_tokens: int, now: float) -> None:
    """OUT_OF_KV: evict one leaf, else preempt one request, else end the only one left. Something always gets smaller."""
    state.faults.out_of_kv(state.ledger.num_free, num_tokens)
    if state.ledger.evict_one():
        return
    victim = choose_loser(state.holders, state.limits)
    if victim is None:
        return
    is_alone = len(state.holders) == 1
    if state.faults.is_out_of_kv_hopeless or (is_alone and num_tokens <= 1):
        reason = FinishReason.LENGTH if victim.num_output else FinishReason.ERROR
        error = None if victim.num_output else "The engine has no room in its KV pool for this request."
        state.finish(victim, reason, now, error)
    elif not is_alone:
        state.preempt(victim, now)


def _isolate(state: SchedulerState, worked: Worked, now: float) -> None:
    """INVALID: find the request at fault by halves; it alone fails."""
    held = [live for live, item in worked.pairs if _held(live, item)]
    if not held:
        return
    culprit = state.faults.invalid(held)
    if culprit is not None:
        state.finish(culprit, FinishReason.ERROR, now, "The engine refused this request's tokens.")


def step_finished(
    state: SchedulerState, plan: StepPlan, worked: Worked, result: StepResult, now: float, duration_s: float, schedule_s: float
) -> StepFinished:
    """The step as numbers; one that did not run counts no tokens. `duration_s`: with the time of drafting."""
    work, num_decodes, num_prefill_tokens, num_drafts = (
        plan.work,
        worked.num_decodes,
        worked.num_prefill_tokens,
        worked.num_drafts,
    )
    if result.status is not StepStatus.OK:
        work, num_decodes, num_prefill_tokens, num_drafts = (), 0, 0, 0
    ledger, beliefs = state.ledger, state.beliefs
    num_cached, num_free = ledger.num_evictable, ledger.num_free
    num_model_drafts, num_model_accepted = num_model_tokens(plan, result) if num_drafts else (0, 0)
    return StepFinished(
        step=plan.step,
        at_s=now,
        duration_s=duration_s,
        schedule_s=schedule_s,
        num_tokens=num_decodes + num_prefill_tokens + num_drafts,
        num_prefill_tokens=num_prefill_tokens,
        num_decode_sequences=num_decodes,
        num_prefill_sequences=len(work) - num_decodes,
        num_running=len(state.running),
        num_waiting=state.num_unplaced,
        num_kv_tokens_running=ledger.capacity_tokens - num_free - num_cached,
        num_kv_tokens_cached=num_cached,
        num_kv_tokens_free=num_free,
        prefills=_prefills(work) if num_prefill_tokens else (),
        num_paused=len(state.paused),
        num_lost_tokens=plan.num_tokens if result.status is StepStatus.INTERRUPTED else 0,
        num_drafted_tokens=num_drafts,
        num_accepted_tokens=len(result.sampled) - len({drawn.request_id for drawn in result.sampled}) if num_drafts else 0,
        speculation_gain=beliefs.speculation_gain,
        cost_s=beliefs.cost_s,
        reserved=beliefs.reserved,
        num_model_drafted_tokens=num_model_drafts,
        num_model_accepted_tokens=num_model_accepted,
        draft_model_gain=beliefs.draft_model_gain,
    )


def _prefills(work: tuple[SequenceWork, ...]) -> tuple[PrefillChunk, ...]:
    return tuple(PrefillChunk(item.request_id, item.start, len(item.tokens)) for item in work if not item.is_decode)
