"""The use cases of the server: chat, complete, tokenize, detokenize, list models.

One call becomes one engine request per choice; their events become one stream of `ServingEvent`s. Runs on the event loop;
what takes longer is `preparation`'s business. Leaving a stream aborts its requests.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ultrafast.core.clock import Clock
from ultrafast.core.errors import EngineFailedError, InvalidRequestError, ModelNotFoundError
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy
from ultrafast.engine.options import EngineFacts
from ultrafast.serving.contract import ChatCall, CompletionCall, ServingEvent
from ultrafast.serving.detokenize import decode_tokens
from ultrafast.serving.generation import Generation, PreparedCall
from ultrafast.serving.inquiry import inquire
from ultrafast.serving.lane import DeltaLane
from ultrafast.serving.limits import check_token_ids
from ultrafast.serving.merge import MergedStreams
from ultrafast.serving.next_turn import NextTurns
from ultrafast.serving.ports import EnginePort, Tokenizer
from ultrafast.serving.preparation import Preparation
from ultrafast.serving.prompts import Conversation, PromptBuilder
from ultrafast.serving.sampling import SamplingDefaults
from ultrafast.serving.supersede import Superseding

_MAX_INQUIRIES = 2
"""Of a burst, all may ask before the first has taken its place: they all have room then, and ask once more."""
_ANY_TIER = ServiceTier.DEFAULT
"""Of what has none: tokens that are only counted or shown."""
MAX_TOKENIZE_CHARS = 1024 * 1024


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
        self._clock = clock
        self._superseding = Superseding()
        self._next_turns = NextTurns(engine, self.tokenize_chat, clock)
        self._begins_next_turns = begins_next_turns
        self.prompts = prompts or PromptBuilder(tokenizer, template_source)
        policies = policies or dict(zip(ServiceTier, DEFAULT_POLICIES, strict=True))
        self._preparation = Preparation(engine, tokenizer, self.prompts, defaults or SamplingDefaults(), policies)

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
        return self._answer(call, lambda: self._preparation.chat(call), lane)

    def complete(self, call: CompletionCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]:
        """Continue one or more texts. Same events and errors as `chat`."""
        return self._answer(call, lambda: self._preparation.completion(call), lane)

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the tokens of a text, which may be longer than the context.

        Raises:
            InvalidRequestError: it is longer than a megabyte, or too many special tokens run into each other in it.
        """
        if len(text) > MAX_TOKENIZE_CHARS:
            raise InvalidRequestError(
                f"the text has {len(text)} characters, the limit is {MAX_TOKENIZE_CHARS}", param="prompt", hint="send it in parts"
            )
        return await self._preparation.run(
            _ANY_TIER, len(text), lambda: self._tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)
        )

    async def tokenize_chat(self, conversation: Conversation) -> list[int]:
        """Return the tokens of a conversation, exactly as `chat` would send them to the engine.

        Raises:
            InvalidRequestError: see `PromptBuilder.render`.
        """
        _, tokens = await self._preparation.chat_prompt(_ANY_TIER, conversation)
        return tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, control tokens spelled out.

        Raises:
            InvalidRequestError: an id is not in the vocabulary.
        """
        return await self._preparation.run(_ANY_TIER, len(tokens), lambda: self._spelled([tokens])[0])

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token by itself, as `detokenize` would; bytes of a part of a character become U+FFFD."""
        return await self._preparation.run(_ANY_TIER, len(tokens), lambda: self._spelled([(token,) for token in tokens]))

    async def run(self) -> None:
        """Do what is done between calls, until it is cancelled. Calls are served without it too."""
        await self._next_turns.run()

    def close(self) -> None:
        """Stop the worker threads. No call may follow."""
        self._preparation.close()

    def _check_model(self, model: str) -> None:
        if model != self._model_id:
            raise ModelNotFoundError(
                f"the model {model!r} is not served here", param="model", hint=f"this server serves {self._model_id!r}"
            )

    def _spelled(self, runs: Sequence[Sequence[int]]) -> list[str]:
        size, pieces, spell = self._tokenizer.size, self._tokenizer.pieces, self._tokenizer.special_text
        for tokens in runs:
            check_token_ids(tokens, size, "tokens")
        return [b"".join([pieces[token] or spell(token).encode() for token in run]).decode("utf-8", "replace") for run in runs]

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
        self._preparation.check_options(options, num_prompts)
        slo = options.slo if num_prompts * options.num_choices == 1 else replace(options.slo, is_movable=False)
        for _ in range(_MAX_INQUIRIES):
            await inquire(self._engine, call.request_id, tier, call.arrival_s, slo)
            if not self._engine.looks_full(tier, wholly=True):
                return
