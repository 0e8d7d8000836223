"""`POST /v1/chat/completions` and `POST /v1/completions`: bodies to calls, calls to answers, and what became of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ultrafast import __version__
from ultrafast.api.answers import unix_time
from ultrafast.api.billing import KEPT_TIER, Bills, price_of
from ultrafast.api.chat_fields import ChatRequest, NamedToolChoice
from ultrafast.api.chunks import ChatChunks, CompletionChunks, StreamFacts
from ultrafast.api.collect import Collector
from ultrafast.api.completion_fields import CompletionRequest, split_prompts
from ultrafast.api.context import EdgeContext
from ultrafast.api.errors import ApiError, describe
from ultrafast.api.exchange import ClientGoneError, Exchange
from ultrafast.api.fields import MAX_PROMPTS, GenerationRequest
from ultrafast.api.generation import Begin, Chunks, Generation, StreamFailedError
from ultrafast.api.options import generation_options
from ultrafast.api.slo import SloAccount
from ultrafast.api.unsupported import refuse_unsupported
from ultrafast.core.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    SupersededError,
    UltrafastError,
    UnavailableError,
)
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import Outcome
from ultrafast.serving.contract import ChatCall, CompletionCall, GenerationOptions, Started, Usage

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for text completions; chat has none."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tells the two routes apart once the call is built."""

    chunks: Callable[[StreamFacts], Chunks]
    build: Callable[[Collector, StreamFacts, Usage], bytes]


_CHAT = _Kind(ChatChunks, Collector.chat)
_COMPLETION = _Kind(CompletionChunks, Collector.completion)


class Generations:
    """The two routes that generate."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context
        self._slo = SloAccount(context)
        self._bills = Bills(context)
        self._prices = {tier: price_of(context.tiers, tier) for tier in ServiceTier}

    async def chat(self, exchange: Exchange) -> None:
        """Answer `POST /v1/chat/completions`."""
        self._context.lifecycle.check()
        request, plain = await self._context.read(exchange, ChatRequest)
        refuse_unsupported(plain)
        options = generation_options(
            request,
            exchange.headers,
            tenant=exchange.tenant,
            max_num_choices=self._context.settings.max_num_choices,
            max_tokens=_chat_max_tokens(request),
            num_logprobs=_chat_logprobs(request),
        )
        call = ChatCall(
            request_id=f"chatcmpl-{os.urandom(12).hex()}",
            model=request.model,
            messages=plain["messages"],
            options=options,
            arrival_s=exchange.arrival_s,
            tools=plain.get("tools") or [],
            tool_choice=_tool_choice(request),
            add_generation_prompt=request.add_generation_prompt is not False,
            template_kwargs=_template_kwargs(request),
        )
        await self._run(exchange, request, call, lambda lane: self._context.service.chat(call, lane), _CHAT)

    async def complete(self, exchange: Exchange) -> None:
        """Answer `POST /v1/completions`."""
        self._context.lifecycle.check()
        request, plain = await self._context.read(exchange, CompletionRequest)
        refuse_unsupported(plain, known=frozenset({"best_of"}))
        options = generation_options(
            request,
            exchange.headers,
            tenant=exchange.tenant,
            max_num_choices=self._context.settings.max_num_choices,
            max_tokens=DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens,
            num_logprobs=request.logprobs,
            echo=bool(request.echo),
        )
        call = CompletionCall(
            request_id=f"cmpl-{os.urandom(12).hex()}",
            model=request.model,
            prompts=_prompts(request, options),
            options=options,
            arrival_s=exchange.arrival_s,
        )
        await self._run(exchange, request, call, lambda lane: self._context.service.complete(call, lane), _COMPLETION)

    async def _run(
        self,
        exchange: Exchange,
        request: GenerationRequest,
        call: ChatCall | CompletionCall,
        begin: Begin,
        kind: _Kind,
    ) -> None:
        requested = call.options.requested_tier
        lifecycle = self._context.lifecycle
        lifecycle.enter(exchange)
        try:
            tier = requested or ServiceTier.DEFAULT
            recorder = self._context.recorder.begin_call(exchange.arrival_s, tier)
            promise = self._slo.begin(tier, call.options.slo, exchange.arrival_s)
            describe = self._describer(request, call.request_id)
            generation = Generation(exchange, begin, recorder, describe, requested)
            # What is not one of our errors is our fault.
            outcome = Outcome.FAILED
            try:
                if request.stream:
                    await generation.run_stream(kind.chunks, self._context.settings.keepalive_interval_s)
                else:
                    await generation.run_whole(kind.build)
                outcome = Outcome.COMPLETED
            except StreamFailedError as failed:
                outcome = _outcome(failed.__cause__, generation)
            except (UltrafastError, ClientGoneError) as error:
                outcome = _outcome(error, generation)
                raise
            finally:
                now = exchange.clock()
                recorder.finish(outcome, now, generation.parts(now) if outcome is Outcome.COMPLETED else None)
                self._slo.count(generation, promise, outcome, now)
                self._bills.count(generation, tier, outcome)
                exchange.log_values = lambda: _log_values(generation, call, request, outcome)
        finally:
            lifecycle.leave(exchange)

    def _describer(self, request: GenerationRequest, completion_id: str) -> Callable[[Started], StreamFacts]:
        usage = request.stream_options
        created = unix_time()

        def describe(started: Started) -> StreamFacts:
            return StreamFacts(
                completion_id=completion_id,
                created=created,
                model=request.model,
                service_tier=started.tier,
                downgrade_reason=None if started.tier_reason in KEPT_TIER else started.tier_reason,
                price=self._prices[started.tier],
                system_fingerprint=self._fingerprint(),
                num_prompt_tokens=started.num_prompt_tokens,
                num_cached_tokens=started.num_cached_tokens,
                has_usage=bool(usage and usage.include_usage),
                has_continuous_usage=bool(usage and usage.include_usage and usage.continuous_usage_stats),
            )

        return describe

    def _fingerprint(self) -> str:
        return f"fp_{__version__}_{self._context.service.models()[0].facts.build}"


def _chat_max_tokens(request: ChatRequest) -> int | None:
    new, old = request.max_completion_tokens, request.max_tokens
    if new is not None and old is not None and new != old:
        raise _invalid("max_tokens", f"max_tokens ({old}) contradicts max_completion_tokens ({new}); give one of them.")
    return new if new is not None else old


def _chat_logprobs(request: ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise _invalid("top_logprobs", "top_logprobs needs logprobs: true.")
    return None


def _tool_choice(request: ChatRequest) -> str:
    choice = request.tool_choice
    if isinstance(choice, NamedToolChoice):
        names = {tool.function.name for tool in request.tools or ()}
        if choice.function.name not in names:
            raise _invalid("tool_choice", f"tool_choice names {choice.function.name!r}, which is not among the tools.")
        return choice.function.name
    return choice or "auto"


def _template_kwargs(request: ChatRequest) -> dict[str, Any]:
    kwargs = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    return kwargs


def _prompts(request: CompletionRequest, options: GenerationOptions) -> list[str | list[int]]:
    prompts = split_prompts(request.prompt)
    if prompts is None:
        kinds = "" if len(set(map(type, request.prompt))) == 1 else " of different kinds"
        raise _invalid(
            "prompt",
            f"prompt must be text, token ids, or a list of at most {MAX_PROMPTS} texts or lists of token ids, all alike, "
            f"got {len(request.prompt)} entries{kinds}.",
        )
    if len(prompts) * options.num_choices > MAX_PROMPTS:
        raise _invalid("n", f"prompts times n must be at most {MAX_PROMPTS}, got {len(prompts)} * {options.num_choices}.")
    if request.best_of is not None and request.best_of != options.num_choices:
        raise _invalid("best_of", f"best_of must equal n ({options.num_choices}), got {describe(request.best_of)}.")
    if options.echo and options.num_logprobs is not None:
        raise _invalid("logprobs", "logprobs of the prompt are not supported; leave echo or logprobs out.")
    return prompts


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(400, "invalid_value", message, param=param)


def _outcome(error: BaseException | None, generation: Generation) -> Outcome:
    if isinstance(error, ClientGoneError | SupersededError):
        return Outcome.ABORTED
    if isinstance(error, UltrafastError) and error.code == "queue_timeout":
        return Outcome.EXPIRED
    if generation.is_placed:
        return Outcome.FAILED  # whatever its class: nobody refused it
    if isinstance(error, InvalidRequestError | ModelNotFoundError) and error.drop_reason is None:
        return Outcome.INVALID
    if isinstance(error, InvalidRequestError | OverloadedError | UnavailableError):
        return Outcome.REJECTED
    return Outcome.FAILED


def _log_values(
    generation: Generation, call: ChatCall | CompletionCall, request: GenerationRequest, outcome: Outcome
) -> dict[str, Any]:
    started, completed, recorder = generation.started, generation.completed, generation.recorder
    first_s = recorder.first_delta_s
    return {
        "completion_id": call.request_id,
        "outcome": outcome.value,
        "tier": started.tier.value if started else None,
        "is_stream": bool(request.stream),
        "num_prompt_tokens": started.num_prompt_tokens if started else None,
        "num_cached_tokens": started.num_cached_tokens if started else None,
        "num_output_tokens": completed.usage.num_output_tokens if completed else recorder.num_tokens,
        "ttft_s": None if first_s is None else first_s - generation.exchange.arrival_s,
    }
