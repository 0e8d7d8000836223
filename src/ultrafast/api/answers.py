"""The bodies of successful answers, in OpenAI's shape; the same structs make the OpenAPI document."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from ultrafast.core.price import FREE, TierPrice
from ultrafast.serving.contract import LogprobEntry, Usage

MIN_LOGPROB = -9999.0
"""What OpenAI writes for a probability of zero; JSON has no infinity."""


class PromptTokensDetails(msgspec.Struct):
    """`cached_tokens` of the prompt were found in the prefix cache and not computed."""

    cached_tokens: int


class UsageBody(msgspec.Struct):
    """Token counts of a call, summed over choices; the prompt counts once. `cost` only where prices are set."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    cost: float | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct):
    """One of the most likely tokens."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token of the answer and the most likely ones at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a chat answer."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionBody(msgspec.Struct, omit_defaults=True):
    """Name and arguments; in a stream the arguments come in pieces."""

    name: str | None = None
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class ToolCallBody(msgspec.Struct, omit_defaults=True):
    """A call that the model makes. `index` only in streams."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    id: str | None = None
    type: str | None = None
    function: FunctionBody = msgspec.field(default_factory=FunctionBody)


class MessageBody(msgspec.Struct, kw_only=True):
    """What the assistant says."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallBody] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """One of `n` answers. `stop_reason`: the stop string or token id that matched, if one did."""

    index: int
    message: MessageBody
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    service_tier: str
    system_fingerprint: str
    service_tier_reason: str | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities of a text completion; four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    """One of `n` completions of one of the prompts; index = prompt * n + i."""

    index: int
    text: str
    finish_reason: str
    logprobs: CompletionLogprobs | None = None
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    service_tier: str
    system_fingerprint: str
    service_tier_reason: str | msgspec.UnsetType = msgspec.UNSET


def unix_time() -> int:
    """Return the wall-clock time for `created`, seconds."""
    return int(datetime.now(tz=UTC).timestamp())


def usage_body(usage: Usage, price: TierPrice = FREE) -> UsageBody:
    """Return usage in OpenAI's shape, and what it costs at `price`, that of the tier that served."""
    total = usage.num_prompt_tokens + usage.num_output_tokens
    cached = PromptTokensDetails(usage.num_cached_tokens)
    return UsageBody(
        usage.num_prompt_tokens, usage.num_output_tokens, total, cached, msgspec.UNSET if price.is_free else cost_of(usage, price)
    )


def cost_of(usage: Usage, price: TierPrice) -> float:
    """Return what a call costs, in the currency of the price."""
    return price.cost(usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_output_tokens)


def chat_logprobs(entries: tuple[LogprobEntry, ...] | list[LogprobEntry]) -> ChatLogprobs:
    """Return log-probabilities in the shape of chat."""
    return ChatLogprobs(
        [
            TokenLogprob(
                entry.token,
                max(entry.logprob, MIN_LOGPROB),
                list(entry.token_bytes),
                [TopLogprob(token, max(logprob, MIN_LOGPROB), list(raw)) for token, raw, logprob in entry.top],
            )
            for entry in entries
        ]
    )


def completion_logprobs(entries: tuple[LogprobEntry, ...] | list[LogprobEntry], offset: int) -> CompletionLogprobs:
    """Return log-probabilities in the shape of completions; `offset`: characters of the choice's text before them."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    has_top = any(entry.top for entry in entries)
    return CompletionLogprobs(
        tokens=[_token_name(entry.token, entry.token_bytes) for entry in entries],
        token_logprobs=[max(entry.logprob, MIN_LOGPROB) for entry in entries],
        top_logprobs=[_top_by_name(entry) for entry in entries] if has_top else None,
        text_offset=offsets,
    )


def _top_by_name(entry: LogprobEntry) -> dict[str, float]:
    named = {_token_name(token, raw): max(logprob, MIN_LOGPROB) for token, raw, logprob in entry.top}
    named.setdefault(_token_name(entry.token, entry.token_bytes), max(entry.logprob, MIN_LOGPROB))
    return named


def _token_name(token: str, raw: bytes) -> str:
    # Tokens that are pieces of a character all look like U+FFFD; OpenAI names them by their bytes.
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw) if "\ufffd" in token else token
