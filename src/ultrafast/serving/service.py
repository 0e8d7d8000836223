"""The use cases of the server: chat, complete, tokenize, detokenize, list models.

One call becomes one engine request per choice; their events become one stream of `ServingEvent`s. Runs on the event loop;
prompts that take more than a moment are prepared on a few threads, the most urgent tier first. Leaving a stream aborts
its requests.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ultrafast.core.clock import Clock
from ultrafast.core.errors import EngineFailedError, InvalidRequestError, ModelNotFoundError
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy
from ultrafast.engine.options import EngineFacts
from ultrafast.serving.contract import ChatCall, CompletionCall, GenerationOptions, ServingEvent
from ultrafast.serving.detokenize import decode_tokens
from ultrafast.serving.generation import Generation, PreparedCall
from ultrafast.serving.inquiry import inquire
from ultrafast.serving.lane import DeltaLane
from ultrafast.serving.limits import (
    check_length_fits,
    check_sequences_fit,
    check_text_fits,
    check_token_ids,
    longest_piece_bytes,
    output_limit,
)
from ultrafast.serving.merge import MergedStreams
from ultrafast.serving.next_turn import NextTurns
from ultrafast.serving.ports import EnginePort, Tokenizer
from ultrafast.serving.prompts import Conversation, PromptBuilder
from ultrafast.serving.sampling import SamplingDefaults, concrete_seed, sampling_params
from ultrafast.serving.stops import StopAutomaton
from ultrafast.serving.stream import OutputPlan
from ultrafast.serving.structured import grammar_for, is_large
from ultrafast.serving.supersede import Superseding
from ultrafast.serving.tool_formats import MARKERS, THINK_CLOSE, THINK_OPEN
from ultrafast.serving.tools import NO_TOOLS, ToolPlan, plan_tools
from ultrafast.serving.workers import Workers

_INLINE_CHARS = 4096
"""Text that is tokenised in about a millisecond; more goes to a worker thread."""
_HUGE_CHARS = 256 * 1024
"""Text that may take seconds: it has a thread of its own and delays only its like."""
_NUM_WORKERS = 2
_MAX_INQUIRIES = 2
"""Of a burst, all may ask before the first has taken its place: they all have room then, and ask once more."""
MAX_CHOICES = 128
_ANY_TIER = ServiceTier.DEFAULT
"""Of what has none: tokens that are only counted or shown."""
DETERMINISTIC_SEED = 0
"""Of deterministic calls that bring none."""
MAX_TOKENIZE_CHARS = 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model. `created_s` is when this server began to serve it, Unix seconds."""

    model_id: str
    created_s: int
    facts: EngineFacts


class Service:
    """Serves one model with one embedded engine. Any number of tasks of one event loop may call it until `close`."""

    def __init__(
        self,
        engine: EnginePort,
        tokenizer: Tokenizer,
        *,
        model_id: str,
        created_s: int,
        defaults: SamplingDefaults | None = None,
        template_source: str | None = None,
        prompts: PromptBuilder | None = None,
        policies: Mapping[ServiceTier, TierPolicy] | None = None,
        begins_next_turns: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        """`template_source` replaces the model's own chat template; `prompts` replaces the builder made of it and the tokenizer.

        `policies`: the tiers' bounds, the most urgent first; None = the defaults. `begins_next_turns`: see `next_turn`.

        Raises:
            ModelFileError: the chat template does not compile.
        """
        self._engine = engine
        self._tokenizer = tokenizer
        self._model_id = model_id
        self._created_s = created_s
        self._defaults = defaults or SamplingDefaults()
        self._policies = policies or dict(zip(ServiceTier, DEFAULT_POLICIES, strict=True))
        self._clock = clock
        self._superseding = Superseding()
        self._next_turns = NextTurns(engine, self.tokenize_chat, clock)
        self._begins_next_turns = begins_next_turns
        self._ranks = {tier: rank for rank, tier in enumerate(self._policies)}
        self._workers = Workers(_NUM_WORKERS, "prompt")
        self._huge_worker = Workers(1, "huge-prompt")
        self.prompts = prompts or PromptBuilder(tokenizer, template_source)
        control_ids = self.prompts.control_ids
        self._piece_bytes = longest_piece_bytes(tokenizer)
        self._marker_pieces = {control_ids[text]: text.encode() for text in MARKERS if text in control_ids}

    def models(self) -> list[ModelInfo]:
        """Return what is served."""
        return [ModelInfo(self._model_id, self._created_s, self._engine.facts)]

    def chat(self, call: ChatCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]:
        """Answer a conversation. See `contract` for the order of events. Deltas may go through `lane` instead, in the same order.

        Raises:
            ModelNotFoundError, InvalidRequestError, ContextLengthError: before the first event.
            UnavailableError: the engine takes no requests, or stopped in the middle of this one.
            EngineFailedError: the engine could not finish.
            OverloadedError: it was refused or waited too long.
            SupersededError: the client sent a newer call in its place.
        """
        return self._answer(call, lambda: self._prepare_chat(call), lane)

    def complete(self, call: CompletionCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]:
        """Continue one or more texts. Same events and errors as `chat`."""
        return self._answer(call, lambda: self._prepare_completion(call), lane)

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the tokens of a text, which may be longer than the context.

        Raises:
            InvalidRequestError: it is longer than a megabyte.
        """
        if len(text) > MAX_TOKENIZE_CHARS:
            raise InvalidRequestError(
                f"the text has {len(text)} characters, the limit is {MAX_TOKENIZE_CHARS}", param="prompt", hint="send it in parts"
            )
        return await self._run(
            _ANY_TIER, len(text), lambda: self._tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)
        )

    async def tokenize_chat(self, conversation: Conversation) -> list[int]:
        """Return the tokens of a conversation, exactly as `chat` would send them to the engine.

        Raises:
            InvalidRequestError: see `PromptBuilder.render`.
        """
        _, tokens = await self._chat_prompt(_ANY_TIER, conversation)
        return tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, control tokens spelled out.

        Raises:
            InvalidRequestError: an id is not in the vocabulary.
        """
        return await self._run(_ANY_TIER, len(tokens), lambda: self._spelled([tokens])[0])

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token by itself, as `detokenize` would; bytes of a part of a character become U+FFFD."""
        return await self._run(_ANY_TIER, len(tokens), lambda: self._spelled([(token,) for token in tokens]))

    async def run(self) -> None:
        """Do what is done between calls, until it is cancelled. Calls are served without it too."""
        await self._next_turns.run()

    def close(self) -> None:
        """Stop the worker threads. No call may follow."""
        self._workers.close()
        self._huge_worker.close()

    def _check_model(self, model: str) -> None:
        if model != self._model_id:
            raise ModelNotFoundError(
                f"the model {model!r} is not served here", param="model", hint=f"this server serves {self._model_id!r}"
            )

    async def _run(self, tier: ServiceTier, num_chars: int, work: Callable[[], _T]) -> _T:
        """Do short work at once and long work on a thread, where it does not wait for less urgent work that has not begun."""
        if num_chars <= _INLINE_CHARS:
            return work()
        workers = self._huge_worker if num_chars > _HUGE_CHARS else self._workers
        return await workers.run(self._ranks[tier], work)

    def _spelled(self, runs: Sequence[Sequence[int]]) -> list[str]:
        size, pieces, spell = self._tokenizer.size, self._tokenizer.pieces, self._tokenizer.special_text
        for tokens in runs:
            check_token_ids(tokens, size, "tokens")
        return [b"".join([pieces[token] or spell(token).encode() for token in run]).decode("utf-8", "replace") for run in runs]

    async def _chat_prompt(self, tier: ServiceTier, conversation: Conversation) -> tuple[str, list[int]]:
        prompts = self.prompts
        # Rendering is an order of magnitude faster than tokenising.
        num_chars = _num_chars(conversation) // 16
        if num_chars <= _INLINE_CHARS:
            rendered = prompts.render(conversation)
        else:
            rendered = await self._run(tier, num_chars, lambda: prompts.render(conversation))
        items = rendered.items
        self._check_fits(rendered.text, "messages")
        num_chars = prompts.num_uncached_chars(items)
        if num_chars <= _INLINE_CHARS:
            return rendered.text, prompts.tokens(items)
        return rendered.text, await self._run(tier, num_chars, lambda: prompts.tokens(items))

    async def _prepare_chat(self, call: ChatCall) -> PreparedCall:
        chat_format = self.prompts.require_format()
        self._check_options(call.options)
        tier = call.options.requested_tier or ServiceTier.DEFAULT
        if call.tools:
            num_chars, control_ids = _num_tool_chars(call), self.prompts.control_ids
            tools = await self._run(tier, num_chars, lambda: plan_tools(call, chat_format, control_ids))
        else:
            tools = plan_tools(call, chat_format, self.prompts.control_ids)
        grammar = tools.grammar or await self._grammar(tier, call.options)
        text, tokens = await self._chat_prompt(
            tier, Conversation(call.messages, list(tools.shown), call.add_generation_prompt, call.template_kwargs)
        )
        output = self._output_plan(call.options, tools, text if chat_format.has_reasoning else None)
        return self._prepared(call, [tokens], grammar, output)

    async def _prepare_completion(self, call: CompletionCall) -> PreparedCall:
        options = call.options
        if options.echo and options.num_logprobs is not None:
            raise InvalidRequestError("echo with logprobs would need log-probabilities of the prompt", param="logprobs")
        self._check_options(options, len(call.prompts))
        tier = options.requested_tier or ServiceTier.DEFAULT
        grammar = await self._grammar(tier, options)
        prompts = [await self._completion_tokens(tier, prompt) for prompt in call.prompts]
        echoes = tuple([await self._prompt_text(tier, prompt) for prompt in call.prompts]) if options.echo else ()
        return self._prepared(call, prompts, grammar, self._output_plan(options, NO_TOOLS, None), echoes)

    def _prepared(
        self,
        call: ChatCall | CompletionCall,
        prompts: list[list[int]],
        grammar: str | None,
        output: OutputPlan,
        echoes: tuple[str, ...] = (),
    ) -> PreparedCall:
        options = call.options
        is_deterministic = self._is_deterministic(options)
        seed = concrete_seed(DETERMINISTIC_SEED if is_deterministic and options.seed is None else options.seed)
        lengths = list(map(len, prompts))
        self._check_room(options, len(prompts), sum(lengths))
        max_request_tokens = self._engine.facts.max_request_tokens
        limits = [output_limit(options, self._defaults, length, max_request_tokens) for length in lengths]
        return PreparedCall(
            request_id=call.request_id,
            arrival_s=call.arrival_s,
            prompts=tuple(map(tuple, prompts)),
            params=tuple(
                [sampling_params(options, self._defaults, max_tokens=limit, seed=seed, grammar=grammar) for limit in limits]
            ),
            num_choices=options.num_choices,
            output=output,
            tier=options.requested_tier or ServiceTier.DEFAULT,
            tier_reason="default" if options.requested_tier is None else "requested",
            cache_salt=options.cache_salt,
            is_cached=options.is_cached,
            may_speculate=options.may_speculate,
            is_deterministic=is_deterministic,
            echoes=echoes,
            slo=options.slo,
        )

    async def _answer(
        self, call: ChatCall | CompletionCall, prepare: Callable[[], Awaitable[PreparedCall]], lane: DeltaLane | None
    ) -> AsyncGenerator[ServingEvent, None]:
        """The one generator between engine and edge; closing it aborts what still runs."""
        self._check_model(call.model)
        with self._next_turns.paused(), self._superseding.claim(call.options.supersede_key) as claim:
            await self._refuse_early(call)
            prepared = await prepare()
            claim.check()
            generation = Generation(prepared, self._engine, self._clock, claim, lane)
            merged = MergedStreams(generation.submit())
            async with merged as batches:
                async for batch in batches:
                    for event in generation.take(merged.number, batch):
                        yield event
                    if not generation.num_open:
                        break
            if generation.num_open:
                raise EngineFailedError("the engine ended a stream without saying why")
            if self._begins_next_turns and isinstance(call, ChatCall):
                self._note_next_turn(call, prepared, generation)
            yield generation.completed()

    def _note_next_turn(self, call: ChatCall, prepared: PreparedCall, generation: Generation) -> None:
        tokens = generation.answer_tokens
        if tokens is None or call.tools or not prepared.is_cached or prepared.is_deterministic:
            return
        conversation = Conversation(call.messages, [], template_kwargs=call.template_kwargs)
        self._next_turns.note(conversation, decode_tokens(tokens, self._tokenizer.pieces), prepared.cache_salt)

    async def _refuse_early(self, call: ChatCall | CompletionCall) -> None:
        """Refuse what has no room before the work on its prompt, which costs more than all else of a refusal.

        The engine decides by the rule that it has for the request itself; only then, when it seems to be full, is it asked first.
        """
        options = call.options
        tier = options.requested_tier or ServiceTier.DEFAULT
        if options.is_deterministic or not self._engine.looks_full(tier):
            return
        num_prompts = len(call.prompts) if isinstance(call, CompletionCall) else 1
        self._check_options(options, num_prompts)
        slo = options.slo if num_prompts * options.num_choices == 1 else replace(options.slo, is_movable=False)
        for _ in range(_MAX_INQUIRIES):
            await inquire(self._engine, call.request_id, tier, call.arrival_s, slo)
            if not self._engine.looks_full(tier, wholly=True):
                return

    async def _completion_tokens(self, tier: ServiceTier, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            self._check_fits(prompt, "prompt")
            return await self._run(tier, len(prompt), lambda: self.prompts.text_tokens(prompt))
        check_length_fits(len(prompt), self._engine.facts.max_request_tokens, "prompt")
        await self._run(tier, len(prompt), lambda: check_token_ids(prompt, self._tokenizer.size, "prompt"))
        return prompt

    async def _prompt_text(self, tier: ServiceTier, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt.encode("utf-8", "replace").decode()
        return await self._run(tier, len(prompt), lambda: decode_tokens(prompt, self._tokenizer.pieces))

    def _check_fits(self, text: str, param: str) -> None:
        check_text_fits(text, self._piece_bytes, self._engine.facts.max_request_tokens, param)

    def _check_options(self, options: GenerationOptions, num_prompts: int = 1) -> None:
        if num_prompts * options.num_choices > MAX_CHOICES:
            raise InvalidRequestError(
                f"{num_prompts} prompts with {options.num_choices} choices each; the limit is {MAX_CHOICES}", param="n"
            )
        self._check_room(options, num_prompts, 0)
        if options.logit_bias:
            check_token_ids([token for token, _ in options.logit_bias], self._tokenizer.size, "logit_bias")
        if options.stop_token_ids:
            check_token_ids(options.stop_token_ids, self._tokenizer.size, "stop_token_ids")

    def _check_room(self, options: GenerationOptions, num_prompts: int, num_tokens: int) -> None:
        """Refuse what can never be in the engine at once. `num_tokens`: of the prompts; 0 = not known yet."""
        num_places = 1 if self._is_deterministic(options) else self._engine.facts.max_num_running
        tier = options.requested_tier or ServiceTier.DEFAULT
        num_choices = options.num_choices
        check_sequences_fit(num_prompts * num_choices, num_tokens * num_choices, num_places, tier, self._policies[tier])

    def _is_deterministic(self, options: GenerationOptions) -> bool:
        """Whether a call runs alone: because it asks for it, or because all do here."""
        mode = self._engine.facts.deterministic
        if options.is_deterministic and mode == "off":
            raise InvalidRequestError(
                "deterministic requests are switched off on this server",
                code="unsupported_parameter",
                param="deterministic",
                hint="start it with engine.deterministic = on, or leave the parameter out",
            )
        return options.is_deterministic or mode == "always"

    async def _grammar(self, tier: ServiceTier, options: GenerationOptions) -> str | None:
        response_format = options.response_format
        if response_format.kind == "text":
            return None
        num_chars = _INLINE_CHARS + 1 if is_large(response_format) else 0
        return await self._run(tier, num_chars, lambda: grammar_for(response_format))

    def _output_plan(self, options: GenerationOptions, tools: ToolPlan, reasoning_prompt: str | None) -> OutputPlan:
        """`reasoning_prompt`: the prompt's text when the model thinks between tags, else None."""
        is_parsed = tools.tool_format is not None or reasoning_prompt is not None
        return OutputPlan(
            pieces=self._tokenizer.pieces,
            overrides=self._marker_pieces if is_parsed else None,
            stops=StopAutomaton(options.stop) if options.stop else None,
            min_tokens=options.min_tokens,
            splits_reasoning=reasoning_prompt is not None,
            is_thinking=reasoning_prompt is not None
            and reasoning_prompt.rfind(THINK_OPEN) > reasoning_prompt.rfind(THINK_CLOSE)
            and reasoning_prompt.rstrip().endswith(THINK_OPEN),
            tool_format=tools.tool_format,
            tool_names=tools.names,
            special_text=self._tokenizer.special_text,
        )


def _num_chars(conversation: Conversation) -> int:
    """Estimate how much text a conversation holds, by its longest fields only: this decides where it is rendered, no more."""
    num_chars = 256 * len(conversation.messages) + 2048 * len(conversation.tools)
    for message in conversation.messages:
        content = message.get("content")
        if isinstance(content, str):
            num_chars += len(content)
        elif isinstance(content, list):
            num_chars += sum(len(part.get("text") or "") for part in content if isinstance(part, dict))
    return num_chars


def _num_tool_chars(call: ChatCall) -> int:
    """Return how much schema `plan_tools` has to compile: it does so only for calls that are forced."""
    return 0 if not call.tools or call.tool_choice in ("none", "auto") else len(str(call.tools))
