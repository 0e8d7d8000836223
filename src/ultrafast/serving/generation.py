"""From a prepared call to its events: one engine request per choice, one stream of `ServingEvent`s for all."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from ultrafast.core.clock import Clock
from ultrafast.core.errors import EngineFailedError, UnavailableError
from ultrafast.core.events import Event, RequestFinished, RequestScheduled, TokenProduced
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.accounting import CallAccount
from ultrafast.serving.contract import ChoiceFinished, Completed, Delta, ServingEvent
from ultrafast.serving.merge import MergedStreams
from ultrafast.serving.ports import EnginePort, EngineStream
from ultrafast.serving.stream import ChoiceStream, OutputPlan


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready for the engine: checked, tokenised, every default filled in.

    Attributes:
        prompts: token ids of each prompt.
        params: parameters of each prompt's choices; choice i draws with `params.seed + i`. An output limit of 0 asks for no
            engine at all.
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
    echoes: tuple[str, ...] = field(default=())


class Generation:
    """Runs one prepared call. Used once, by one task."""

    _numbers = itertools.count()

    def __init__(self, call: PreparedCall, engine: EnginePort, clock: Clock) -> None:
        self._call = call
        self._engine = engine
        self._clock = clock
        num_streams = len(call.prompts) * call.num_choices
        self._choices = [ChoiceStream(index, call.output) for index in range(num_streams)]
        self._is_done = [False] * num_streams
        self._is_started = False
        lengths = [len(prompt) for prompt in call.prompts]
        self._account = CallAccount(call.arrival_s, clock(), lengths, call.num_choices)

    async def events(self) -> AsyncGenerator[ServingEvent, None]:
        """Yield the call's events; closing this generator aborts what still runs.

        Raises:
            EngineFailedError, UnavailableError: see `Service.chat`.
        """
        if self._call.params[0].max_tokens == 0:
            for event in self._without_engine():
                yield event
            return
        async with MergedStreams(self._submit()) as merged, aclosing(merged.batches()) as batches:
            async for number, batch in batches:
                for event in self._take(number, batch):
                    yield event
                if all(self._is_done):
                    break
        if not all(self._is_done):
            raise EngineFailedError("the engine ended a stream without saying why")
        yield self._completed()

    def _submit(self) -> list[EngineStream]:
        streams: list[EngineStream] = []
        try:
            streams.extend(self._engine.submit(request) for request in self._requests())
        except BaseException:
            for stream in streams:
                stream.abort()
            raise
        return streams

    def _requests(self) -> Iterator[Request]:
        call = self._call
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
                    use_cache=call.is_cached,
                    may_speculate=call.may_speculate,
                )

    def _take(self, number: int, batch: tuple[Event, ...]) -> Iterator[ServingEvent]:
        """Turn one batch of one stream into events."""
        if self._is_done[number]:
            return
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
        if finished is not None:
            _raise_failure(finished)
        if not tokens and finished is None:
            return
        if not self._is_started:
            yield from self._started()
        yield from self._output(self._choices[number], tokens, finished)

    def _started(self) -> Iterator[ServingEvent]:
        self._is_started = True
        yield self._account.started(self._clock(), self._call.tier, self._call.tier_reason)
        for choice in self._choices if self._call.echoes else ():
            yield Delta(choice.index, text=self._call.echoes[choice.index // self._call.num_choices])

    def _output(
        self, choice: ChoiceStream, tokens: list[TokenProduced], finished: RequestFinished | None
    ) -> Iterator[ServingEvent]:
        if tokens and (delta := choice.add(tokens)) is not None:
            yield delta
        if finished is not None and (delta := choice.finish()) is not None:
            yield delta
        if choice.is_stopped or finished is not None:
            self._is_done[choice.index] = True
            yield ChoiceFinished(choice.index, _finish_reason(choice, finished), choice.stop_match)

    def _without_engine(self) -> Iterator[ServingEvent]:
        yield from self._started()
        for choice in self._choices:
            yield ChoiceFinished(choice.index, "length")
        yield self._completed()

    def _completed(self) -> Completed:
        self._account.ended(self._clock())
        return Completed(self._account.usage(sum(choice.num_tokens for choice in self._choices)), self._account.timings())


def _with_seed(params: SamplingParams, choice: int) -> SamplingParams:
    return params if choice == 0 else replace(params, seed=params.seed + choice)


def _raise_failure(finished: RequestFinished) -> None:
    if finished.reason is FinishReason.ERROR:
        raise EngineFailedError(finished.error or "the engine could not finish this request")
    if finished.reason is FinishReason.ABORT:
        raise UnavailableError("the server ended this request because it is shutting down")


def _finish_reason(choice: ChoiceStream, finished: RequestFinished | None) -> str:
    if finished is not None and finished.reason is FinishReason.LENGTH and not choice.is_stopped:
        return "length"
    return "tool_calls" if choice.num_tool_calls else "stop"
