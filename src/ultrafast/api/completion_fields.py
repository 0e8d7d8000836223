"""The bodies of `POST /v1/completions`, `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ultrafast.api.chat_fields import Message, Tool
from ultrafast.api.fields import MAX_LOGPROBS, MAX_MESSAGES, MAX_PROMPTS, Choices, GenerationRequest, TokenId

Tokens = Annotated[list[TokenId], Meta(min_length=1)]
MAX_DETOKENIZE_TOKENS = 1024 * 1024
"""As many as the longest text that is tokenised has characters."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """A text completion request. `prompt`: text, a list of texts, token ids, or a list of lists of token ids."""

    prompt: str | Annotated[list[str | TokenId | Tokens], Meta(min_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Choices | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to text."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_DETOKENIZE_TOKENS)]
    model: str | None = None


def split_prompts(prompt: str | list[Any]) -> list[str | list[int]] | None:
    """Return the prompts of a request, each text or token ids; None when the list mixes kinds or is too long."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [prompt]
    if len(kinds) == 1 and len(prompt) <= MAX_PROMPTS:
        return prompt
    return None
