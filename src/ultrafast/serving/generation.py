"""From a prepared call to its events: one engine request per choice, one stream of `ServingEvent`s for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ultrafast.core.clock import Clock
from ultrafast.core.errors import EngineFailedError, UnavailableError
from ultrafast.core.events import DEAD_END, EXECUTION_TIMEOUT, Event, RequestFinished, RequestScheduled, TokenProduced
from ultrafast.core.request import TIER_SLO, FinishReason, Request, RequestSlo, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.accounting import CallAccount
from ultrafast.serving.contract import ChoiceFinished, Completed, Delta, Placed, ServingEvent
from ultrafast.serving.lane import DeltaLane
from ultrafast.serving.ports import EnginePort, EngineStream
from ultrafast.serving.refusals import dead_end, refusal
from ultrafast.serving.stream import ChoiceStream, OutputPlan
from ultrafast.serving.supersede import Claim

_CUTS = (FinishReason.LENGTH, FinishReason.DEADLINE)


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready for the engine: checked, tokenised, every default filled in.

    Attributes:
        prompts: token ids of each prompt.
        params: parameters of each prompt's choices; choice i draws with `params.seed + i`.
        echoes: prompt texts to repeat in front of the output; empty for none.
    """

    request_id: str
    arrival_s: float
    prompts: tuple[tuple[int, ...], ...]
    params: tuple[SamplingParams, ...]
    num_choices: int
    output: OutputPlan
    tier: ServiceTier
    tier_reason: str
    cache_salt: str = ""
    is_cached: bool = True
    may_speculate: bool = True
    is_deterministic: bool = False
    echoes: tuple[str, ...] = field(default=())
    slo: RequestSlo = TIER_SLO


class Generation:
    """Runs one prepared call: `submit`, then `take` every batch until `num_open` is 0, then `completed`. Used once, by one task.

    Nothing in here is a coroutine or a generator: each layer of those would be resumed for each token.

    Attributes:
        num_open: choices that have not finished.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        call: PreparedCall,
        engine: EnginePort,
        clock: Clock,
        claim: Claim | None = None,
        lane: DeltaLane | None = None,
    ) -> None:
        self._claim = claim or Claim()
        self._lane = lane
        self._call = call
        self._engine = engine
        self._clock = clock
        self.num_open = len(call.prompts) * call.num_choices
        self._choices = [ChoiceStream(index, call.output) for index in range(self.num_open)]
        self._is_done = [False] * self.num_open
        self._is_started = False
        self._is_timed_out = False
        self._streams: list[EngineStream] = []
        lengths = list(map(len, call.prompts))
        self._tier = call.tier
        self._tier_reason = call.tier_reason
        self._account = CallAccount(call.arrival_s, clock(), lengths, call.num_choices)

    def submit(self) -> list[EngineStream]:
        """Hand one request per choice to the engine, all or none; whoever gets the streams must end them.

        Raises:
            SupersededError: a newer call took this one's place while it was prepared.
            UnavailableError: see `Service.chat`.
        """
        streams: list[EngineStream] = []
        try:
            for request in self._requests():
                streams.append(self._engine.submit(request))  # noqa: PERF401 - those before a failure must be known
        except BaseException:
            for stream in streams:
                stream.abort()
            raise
        for stream in streams:
            stream.is_counted = self._call.output.stops is not None
        self._claim.watch(streams)
        self._streams = streams
        # The events of several streams meet in one queue, which nothing may overtake.
        if self._lane is not None and len(streams) == 1 and not self._choices[0].ends_by_itself:
            streams[0].shortcut = self._take_short
        return streams

    def _requests(self) -> Iterator[Request]:
        call = self._call
        # Of several sequences each could be moved to another tier, and the answer names one.
        slo = call.slo if self.num_open == 1 else replace(call.slo, is_movable=False)
        for prompt, params in zip(call.prompts, call.params, strict=True):
            for choice in range(call.num_choices):
                yield Request(
                    # Client-given ids repeat; the number makes them unique in the engine.
                    request_id=f"{call.request_id}:{next(self._numbers)}",
                    prompt_tokens=prompt,
                    params=_with_seed(params, choice),
                    tier=call.tier,
                    arrival_s=call.arrival_s,
                    cache_salt=call.cache_salt,
                    use_cache=call.is_cached and not call.is_deterministic,
                    slo=slo,
                    may_speculate=call.may_speculate and not call.is_deterministic,
                    is_deterministic=call.is_deterministic,
                )

    def take(self, number: int, batch: tuple[Event, ...]) -> Sequence[ServingEvent]:
        """Turn one batch of one stream into events.

        Raises:
            EngineFailedError, UnavailableError: see `Service.chat`.
        """
        if self._is_done[number]:
            return ()
        if self._is_started and len(batch) == 1 and isinstance(batch[0], TokenProduced):
            choice = self._choices[number]
            if not choice.ends_by_itself:
                delta = choice.add_one(batch[0])
                return () if delta is None else (delta,)
            return self._output(choice, (batch[0],), None)
        tokens: list[TokenProduced] = []
        finished: RequestFinished | None = None
        for event in batch:
            if isinstance(event, TokenProduced):
                tokens.append(event)
            elif isinstance(event, RequestFinished):
                finished = event
                self._account.finished(number, event)
            elif isinstance(event, RequestScheduled):
                self._account.scheduled(number, event)
                self._note_tier(event)
                self._note_place(event)
        if finished is not None:
            self._raise_failure(finished)
        if not tokens and finished is None:
            return ()
        started = [] if self._is_started else self._started()
        return [*started, *self._output(self._choices[number], tokens, finished)]

    def _take_short(self, event: Event) -> bool:
        """Deliver a token past the reader, if what it makes visible can be written at once."""
        lane = self._lane
        if lane is None or type(event) is not TokenProduced or not self._is_started or not lane.is_open():
            return False
        delta = self._choices[0].add_one(event)
        if delta is not None:
            lane.take(delta)
        return True

    @property
    def answer_tokens(self) -> Sequence[int] | None:
        """The tokens whose text is the answer; None where there are several, or the text was cut or read as something else."""
        choice = self._choices[0]
        is_whole = len(self._choices) == 1 and choice.is_verbatim
        return self._streams[0].output_tokens if is_whole else None

    def completed(self) -> Completed:
        """Return the last event."""
        self._account.ended(self._clock())
        usage = self._account.usage(sum([choice.num_tokens for choice in self._choices]))
        return Completed(usage, self._account.timings(), self._is_timed_out)

    def _raise_failure(self, finished: RequestFinished) -> None:
        if finished.reason in (FinishReason.REJECT, FinishReason.EXPIRE):
            raise refusal(finished, self._call.slo)
        if finished.reason is FinishReason.ERROR and finished.error_code == DEAD_END:
            raise dead_end(finished)
        if finished.reason is FinishReason.ERROR:
            raise EngineFailedError(finished.error or "the engine could not finish this request")
        if finished.reason is FinishReason.ABORT:
            self._claim.check()
            raise UnavailableError("the server ended this request because it is shutting down")

    def _note_tier(self, event: RequestScheduled) -> None:
        """A call is in the tier that one of its sequences was moved to."""
        if event.tier is not None and event.downgrade_reason is not None:
            self._tier, self._tier_reason = event.tier, event.downgrade_reason.value

    def _note_place(self, event: RequestScheduled) -> None:
        if self._lane is not None and self._lane.placed is None:
            self._lane.placed = Placed(self._tier, self._tier_reason, max(0.0, event.at_s - self._call.arrival_s))

    def _started(self) -> list[ServingEvent]:
        self._is_started = True
        started = self._account.started(self._clock(), self._tier, self._tier_reason)
        echoed = self._choices if self._call.echoes else ()
        return [started, *(Delta(one.index, text=self._call.echoes[one.index // self._call.num_choices]) for one in echoed)]

    def _output(
        self, choice: ChoiceStream, tokens: Sequence[TokenProduced], finished: RequestFinished | None
    ) -> list[ServingEvent]:
        events: list[ServingEvent] = []
        if tokens and (delta := choice.add(tokens)) is not None:
            events.append(delta)
        if finished is not None and (delta := choice.finish()) is not None:
            events.append(delta)
        if finished is not None or choice.is_stopped:
            self._is_done[choice.index] = True
            self._streams[choice.index].num_delivered = choice.num_tokens
            if finished is None:
                self._streams[choice.index].stop()
                self._account.stopped(choice.index, self._clock())
            self.num_open -= 1
            is_cut = finished is not None and finished.reason is FinishReason.DEADLINE and not choice.is_stopped
            self._is_timed_out |= is_cut
            stop_match = EXECUTION_TIMEOUT if is_cut else choice.stop_match
            events.append(ChoiceFinished(choice.index, _finish_reason(choice, finished), stop_match))
        return events


def _with_seed(params: SamplingParams, choice: int) -> SamplingParams:
    return params if choice == 0 else replace(params, seed=params.seed + choice)


def _finish_reason(choice: ChoiceStream, finished: RequestFinished | None) -> str:
    if finished is not None and finished.reason in _CUTS and not choice.is_stopped:
        return "length"
    return "tool_calls" if choice.num_tool_calls else "stop"
