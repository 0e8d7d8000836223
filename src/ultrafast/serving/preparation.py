"""From a call to a `PreparedCall`: checked, rendered, tokenised, every default filled in.

call --options, room--> tools, grammar --> prompt text --> tokens --> PreparedCall
`----------- long ones on a few threads, the most urgent tier first -----------'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ultrafast.core.errors import InvalidRequestError
from ultrafast.core.tiers import ServiceTier, TierPolicy
from ultrafast.serving.contract import ChatCall, CompletionCall, GenerationOptions
from ultrafast.serving.detokenize import decode_tokens
from ultrafast.serving.generation import PreparedCall
from ultrafast.serving.limits import (
    check_length_fits,
    check_sequences_fit,
    check_text_fits,
    check_token_ids,
    longest_piece_bytes,
    output_limit,
)
from ultrafast.serving.ports import EnginePort, Tokenizer
from ultrafast.serving.prompts import Conversation, PromptBuilder
from ultrafast.serving.sampling import SamplingDefaults, concrete_seed, sampling_params
from ultrafast.serving.stops import StopAutomaton
from ultrafast.serving.stream import OutputPlan
from ultrafast.serving.structured import grammar_for, is_large
from ultrafast.serving.tool_formats import MARKERS, THINK_CLOSE, THINK_OPEN
from ultrafast.serving.tools import NO_TOOLS, ToolPlan, plan_tools
from ultrafast.serving.workers import Workers

INLINE_CHARS = 4096
"""Text that is tokenised in about a millisecond; more goes to a worker thread."""
HUGE_CHARS = 256 * 1024
"""Text that may take seconds: it has a thread of its own and delays only its like."""
_NUM_WORKERS = 2
MAX_CHOICES = 128
DETERMINISTIC_SEED = 0
"""Of deterministic calls that bring none."""

_T = TypeVar("_T")


class Preparation:
    """Prepares calls for one engine; used on the event loop until `close`. `policies`: the most urgent tier first.

    All its methods raise InvalidRequestError or ContextLengthError for what the client did wrong.
    """

    def __init__(
        self,
        engine: EnginePort,
        tokenizer: Tokenizer,
        prompts: PromptBuilder,
        defaults: SamplingDefaults,
        policies: Mapping[ServiceTier, TierPolicy],
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._defaults = defaults
        self._policies = policies
        self._ranks = {tier: rank for rank, tier in enumerate(policies)}
        self._workers = Workers(_NUM_WORKERS, "prompt")
        self._huge_worker = Workers(1, "huge-prompt")
        self._piece_bytes = longest_piece_bytes(tokenizer)
        control_ids = prompts.control_ids
        self._marker_pieces = {control_ids[text]: text.encode() for text in MARKERS if text in control_ids}

    async def chat(self, call: ChatCall) -> PreparedCall:
        """Prepare a chat completion."""
        chat_format = self._prompts.require_format()
        self.check_options(call.options)
        tier = call.options.requested_tier or ServiceTier.DEFAULT
        if call.tools:
            num_chars, control_ids = _num_tool_chars(call), self._prompts.control_ids
            tools = await self.run(tier, num_chars, lambda: plan_tools(call, chat_format, control_ids))
        else:
            tools = plan_tools(call, chat_format, self._prompts.control_ids)
        grammar = tools.grammar or await self._grammar(tier, call.options)
        text, tokens = await self.chat_prompt(
            tier, Conversation(call.messages, list(tools.shown), call.add_generation_prompt, call.template_kwargs)
        )
        output = self._output_plan(call.options, tools, text if chat_format.has_reasoning else None)
        return self._prepared(call, [tokens], grammar, output)

    async def completion(self, call: CompletionCall) -> PreparedCall:
        """Prepare a text completion."""
        options = call.options
        if options.echo and options.num_logprobs is not None:
            raise InvalidRequestError("echo with logprobs would need log-probabilities of the prompt", param="logprobs")
        self.check_options(options, len(call.prompts))
        tier = options.requested_tier or ServiceTier.DEFAULT
        grammar = await self._grammar(tier, options)
        prompts = [await self._completion_tokens(tier, prompt) for prompt in call.prompts]
        echoes = tuple([await self._prompt_text(tier, prompt) for prompt in call.prompts]) if options.echo else ()
        return self._prepared(call, prompts, grammar, self._output_plan(options, NO_TOOLS, None), echoes)

    async def chat_prompt(self, tier: ServiceTier, conversation: Conversation) -> tuple[str, list[int]]:
        """Return the text and the tokens of a conversation's prompt."""
        prompts = self._prompts
        # Rendering is an order of magnitude faster than tokenising.
        num_chars = _num_chars(conversation) // 16
        if num_chars <= INLINE_CHARS:
            rendered = prompts.render(conversation)
        else:
            rendered = await self.run(tier, num_chars, lambda: prompts.render(conversation))
        items = rendered.items
        self._check_fits(rendered.text, "messages")
        num_chars = prompts.num_uncached_chars(items)
        if num_chars <= INLINE_CHARS:
            return rendered.text, prompts.tokens(items)
        return rendered.text, await self.run(tier, num_chars, lambda: prompts.tokens(items))

    async def run(self, tier: ServiceTier, num_chars: int, work: Callable[[], _T]) -> _T:
        """Do short work at once and long work on a thread, where it does not wait for less urgent work that has not begun."""
        if num_chars <= INLINE_CHARS:
            return work()
        workers = self._huge_worker if num_chars > HUGE_CHARS else self._workers
        return await workers.run(self._ranks[tier], work)

    def check_options(self, options: GenerationOptions, num_prompts: int = 1) -> None:
        """Refuse options that cannot be served, whatever the prompt."""
        if num_prompts * options.num_choices > MAX_CHOICES:
            raise InvalidRequestError(
                f"{num_prompts} prompts with {options.num_choices} choices each; the limit is {MAX_CHOICES}", param="n"
            )
        self._check_room(options, num_prompts, 0)
        if options.logit_bias:
            check_token_ids([token for token, _ in options.logit_bias], self._tokenizer.size, "logit_bias")
        if options.stop_token_ids:
            check_token_ids(options.stop_token_ids, self._tokenizer.size, "stop_token_ids")

    def close(self) -> None:
        """Stop the worker threads. No call may follow."""
        self._workers.close()
        self._huge_worker.close()

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
        param = "messages" if isinstance(call, ChatCall) else "prompt"
        limits = [output_limit(options, self._defaults, length, max_request_tokens, param) for length in lengths]
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

    async def _completion_tokens(self, tier: ServiceTier, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            self._check_fits(prompt, "prompt")
            return await self.run(tier, len(prompt), lambda: self._prompts.text_tokens(prompt))
        check_length_fits(len(prompt), self._engine.facts.max_request_tokens, "prompt")
        await self.run(tier, len(prompt), lambda: check_token_ids(prompt, self._tokenizer.size, "prompt"))
        return prompt

    async def _prompt_text(self, tier: ServiceTier, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt.encode("utf-8", "replace").decode()
        return await self.run(tier, len(prompt), lambda: decode_tokens(prompt, self._tokenizer.pieces))

    def _check_fits(self, text: str, param: str) -> None:
        check_text_fits(text, self._piece_bytes, self._engine.facts.max_request_tokens, param)

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
        num_chars = INLINE_CHARS + 1 if is_large(response_format) else 0
        return await self.run(tier, num_chars, lambda: grammar_for(response_format))

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
