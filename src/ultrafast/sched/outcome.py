"""Books one step's result: computed tokens, drawn tokens, ends, and the three ways in which a step can fail."""

from __future__ import annotations

from ultrafast.core.events import PrefillChunk, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason
from ultrafast.core.step import SampledToken, SequenceWork, StepPlan, StepResult, StepStatus
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import choose_victim
from ultrafast.sched.state import SchedulerState

Worked = list[tuple[LiveRequest, SequenceWork]]


def book(state: SchedulerState, plan: StepPlan, result: StepResult, now: float) -> None:
    """Advance the state by one step; events go to `state.emit`.

    A FATAL result changes nothing: the engine is restarted, and whoever restarts it submits the live requests again.
    """
    worked = _still_running(state, plan)
    if result.status is StepStatus.OK:
        _advance(state, worked, result, now)
    elif result.status is StepStatus.OUT_OF_KV:
        _give_way(state, plan.num_tokens, now)
    elif result.status is StepStatus.INVALID:
        _isolate(state, worked, now)


def _still_running(state: SchedulerState, plan: StepPlan) -> Worked:
    """The plan's work, without requests that ended (or moved) since it was made."""
    worked: Worked = []
    for item in plan.work:
        live = state.live.get(item.request_id)
        if live is not None and live.sequence is not None and live.sequence.seq_id == item.seq_id:
            worked.append((live, item))
    return worked


def _advance(state: SchedulerState, worked: Worked, result: StepResult, now: float) -> None:
    failed = dict(result.failed)
    sampled = {drawn.request_id: drawn for drawn in result.sampled}
    state.faults.step_succeeded([live for live, _ in worked])
    for live, item in worked:
        if item.request_id in failed:
            state.finish(live, FinishReason.ERROR, now, failed[item.request_id])
            continue
        assert live.sequence is not None, "checked when the work was collected"
        state.ledger.extend(live.sequence, list(item.tokens))
        live.num_computed += len(item.tokens)
        live.total_computed += len(item.tokens)
        live.last_run_s = now
        state.release_followers(live)
        if item.samples:
            assert item.request_id in sampled, f"no token was drawn for {item.request_id}, and it did not fail"
            _take_token(state, live, sampled[item.request_id], now)


def _take_token(state: SchedulerState, live: LiveRequest, drawn: SampledToken, now: float) -> None:
    if drawn.is_end:
        state.finish(live, FinishReason.STOP, now)
        return
    live.tokens.append(drawn.token)
    live.last_token_s = now
    if live.first_token_s is None:
        live.first_token_s = now
    state.emit(TokenProduced(live.request_id, drawn.token, drawn.logprobs))
    if drawn.is_complete:
        state.finish(live, FinishReason.STOP, now)
    elif is_at_limit(state, live):
        state.finish(live, FinishReason.LENGTH, now)


def is_at_limit(state: SchedulerState, live: LiveRequest) -> bool:
    """No further token can be had: the request's own limit, the model's context, or the whole KV pool."""
    limits = state.limits
    return (
        live.num_output >= live.request.params.max_tokens
        or len(live.tokens) >= limits.max_request_tokens
        or len(live.tokens) > limits.kv_capacity_tokens
    )


def _give_way(state: SchedulerState, num_tokens: int, now: float) -> None:
    """OUT_OF_KV: evict one leaf, else preempt one request, else end the only one left. Something always gets smaller."""
    state.faults.out_of_kv(state.ledger.num_free, num_tokens)
    if state.ledger.evict_one():
        return
    victim = choose_victim(state.holders)
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
    if not worked:
        return
    culprit = state.faults.invalid([live for live, _ in worked])
    if culprit is not None:
        state.finish(culprit, FinishReason.ERROR, now, "The engine refused this request's tokens.")


def step_finished(state: SchedulerState, plan: StepPlan, result: StepResult, now: float, schedule_s: float) -> StepFinished:
    """The step as numbers; one that did not run counts no tokens."""
    work = plan.work if result.status is StepStatus.OK else ()
    num_decodes, num_prefill_tokens = split_work(work)
    usage = state.ledger.usage
    return StepFinished(
        step=plan.step,
        at_s=now,
        duration_s=result.duration_s,
        schedule_s=schedule_s,
        num_tokens=num_decodes + num_prefill_tokens,
        num_prefill_tokens=num_prefill_tokens,
        num_decode_sequences=num_decodes,
        num_prefill_sequences=len(work) - num_decodes,
        num_running=len(state.running),
        num_waiting=len(state.waiting) + len(state.followers) + state.restorer.num_aside,
        num_kv_tokens_running=usage.num_running_tokens,
        num_kv_tokens_cached=usage.num_cached_tokens,
        num_kv_tokens_free=usage.num_free_tokens,
        prefills=_prefills(work) if num_prefill_tokens else (),
        num_paused=len(state.paused),
    )


def split_work(work: tuple[SequenceWork, ...]) -> tuple[int, int]:
    """(sequences that compute exactly one token and draw the next, tokens of all others)."""
    num_decodes = sum(_is_decode(item) for item in work)
    return num_decodes, sum(len(item.tokens) for item in work) - num_decodes


def _is_decode(item: SequenceWork) -> bool:
    return item.samples and len(item.tokens) == 1


def _prefills(work: tuple[SequenceWork, ...]) -> tuple[PrefillChunk, ...]:
    return tuple(PrefillChunk(item.request_id, item.start, len(item.tokens)) for item in work if not _is_decode(item))
