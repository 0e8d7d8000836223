"""Books one step's result: computed tokens, drawn tokens, ends, and the three ways in which a step can fail."""

from __future__ import annotations

from ultrafast.core.events import DEAD_END, PrefillChunk, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason
from ultrafast.core.step import SampledToken, SequenceWork, StepPlan, StepResult, StepStatus
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import choose_victim
from ultrafast.sched.speculation.model_drafts import num_model_tokens
from ultrafast.sched.state import SchedulerState

Worked = list[tuple[LiveRequest, SequenceWork]]


def book(state: SchedulerState, plan: StepPlan, result: StepResult, now: float) -> None:
    """Advance the state by one step; events go to `state.emit`.

    A FATAL result changes nothing: the engine is restarted, and whoever restarts it submits the live requests again.
    """
    worked = _still_running(state, plan)
    if result.status is StepStatus.OK:
        _advance(state, worked, result, now)
    elif result.status is not StepStatus.FATAL and state.drafting.step_failed(plan):
        return
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
    draws = _draws_by_request(result)
    state.faults.step_succeeded([live for live, _ in worked])
    for live, item in worked:
        drawn = draws.get(item.request_id, ())
        if item.request_id not in failed:
            assert bool(drawn) == item.samples, f"{len(drawn)} draws for {item.request_id}, which did not fail"
            right_drafts = item.drafts[: len(drawn) - 1] if drawn else ()
            _extend(state, live, item.tokens + right_drafts, now)
        for one in drawn:
            assert live.sequence is not None, f"{live.request_id} got a token after its end"
            _take_token(state, live, one, now)
        if item.request_id in failed:
            code = DEAD_END if item.request_id in result.dead_ends else None
            state.finish(live, FinishReason.ERROR, now, failed[item.request_id], error_code=code)


def _draws_by_request(result: StepResult) -> dict[str, list[SampledToken]]:
    draws: dict[str, list[SampledToken]] = {}
    for drawn in result.sampled:
        draws.setdefault(drawn.request_id, []).append(drawn)
    return draws


def _extend(state: SchedulerState, live: LiveRequest, tokens: tuple[int, ...], now: float) -> None:
    """Book computed tokens, right drafts among them: those are output that is taken next."""
    assert live.sequence is not None, "checked when the work was collected"
    state.ledger.extend(live.sequence, tokens)
    live.num_computed += len(tokens)
    live.total_computed += len(tokens)
    live.last_run_s = now
    state.release_followers(live)


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
    limits, num_tokens = state.limits, len(live.tokens)
    return (
        num_tokens - live.num_prompt >= live.request.params.max_tokens
        or num_tokens >= limits.max_request_tokens
        or num_tokens > limits.kv_capacity_tokens
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
    num_drafts = sum(len(item.drafts) for item in work)
    num_model_drafts, num_model_accepted = num_model_tokens(plan, result) if work else (0, 0)
    return StepFinished(
        step=plan.step,
        at_s=now,
        duration_s=result.duration_s,
        schedule_s=schedule_s,
        num_tokens=num_decodes + num_prefill_tokens + num_drafts,
        num_prefill_tokens=num_prefill_tokens,
        num_decode_sequences=num_decodes,
        num_prefill_sequences=len(work) - num_decodes,
        num_running=len(state.running),
        num_waiting=state.num_unplaced,
        num_kv_tokens_running=usage.num_running_tokens,
        num_kv_tokens_cached=usage.num_cached_tokens,
        num_kv_tokens_free=usage.num_free_tokens,
        prefills=_prefills(work) if num_prefill_tokens else (),
        num_paused=len(state.paused),
        num_drafted_tokens=num_drafts,
        num_accepted_tokens=len(result.sampled) - len({drawn.request_id for drawn in result.sampled}) if num_drafts else 0,
        speculation_gain=state.drafting.gain.value,
        cost_s=state.cost.coefficients if state.cost.is_fitted else (0.0, 0.0, 0.0),
        reserved=state.reservations.report(),
        num_model_drafted_tokens=num_model_drafts,
        num_model_accepted_tokens=num_model_accepted,
        draft_model_gain=state.drafting.model_gain.value,
    )


def split_work(work: tuple[SequenceWork, ...]) -> tuple[int, int]:
    """(sequences that compute exactly one token and draw the next, tokens of all others)."""
    num_decodes = num_prefill_tokens = 0
    for item in work:
        if _is_decode(item):
            num_decodes += 1
        else:
            num_prefill_tokens += len(item.tokens)
    return num_decodes, num_prefill_tokens


def _is_decode(item: SequenceWork) -> bool:
    return item.samples and len(item.tokens) == 1


def _prefills(work: tuple[SequenceWork, ...]) -> tuple[PrefillChunk, ...]:
    return tuple(PrefillChunk(item.request_id, item.start, len(item.tokens)) for item in work if not _is_decode(item))
