"""The JSON of a request, in the dialect that the server at hand accepts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


class Dialect(msgspec.Struct, frozen=True):
    """Which optional fields are sent. The preflight takes away what the server refuses.

    Attributes:
        has_usage: ask for token counts at the end of the stream.
        has_running_usage: ask for them in every chunk (`continuous_usage_stats` of vLLM and ours).
        ignores_eos: ask the server to go on to the wanted length (vLLM, llama.cpp and ours).
        is_new_limit: say `max_completion_tokens`, which OpenAI's newer models insist on.
    """

    path: str = CHAT_PATH
    has_usage: bool = True
    has_running_usage: bool = True
    ignores_eos: bool = True
    is_new_limit: bool = False

    def plainer(self) -> list[Dialect]:
        """Dialects to try in turn when the server refuses this one, each with a little less."""
        found = [self]

        def step(**changes: bool) -> None:
            found.append(msgspec.structs.replace(found[-1], **changes))

        if self.has_running_usage:
            step(has_running_usage=False)
        if self.ignores_eos:
            found.append(msgspec.structs.replace(self, ignores_eos=False))
            step(has_running_usage=False)
        if self.path == CHAT_PATH:
            step(is_new_limit=True)
            step(is_new_limit=False, has_usage=False)
        return found


def build_body(
    model: str,
    messages: Sequence[dict[str, Any]],
    dialect: Dialect,
    *,
    num_output_tokens: int | None,
    tier: str | None = None,
    extra: dict[str, Any] | None = None,
) -> bytes:
    """A streamed request. `extra` fields of the user come last and win."""
    body: dict[str, Any] = {"model": model, "stream": True}
    if dialect.path == COMPLETIONS_PATH:
        body["prompt"] = "\n\n".join(str(message.get("content", "")) for message in messages)
    else:
        body["messages"] = list(messages)
    if num_output_tokens is not None:
        body["max_completion_tokens" if dialect.is_new_limit else "max_tokens"] = num_output_tokens
    if dialect.has_usage:
        body["stream_options"] = {"include_usage": True}
        if dialect.has_running_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    if dialect.ignores_eos:
        body["ignore_eos"] = True
    if tier is not None:
        body["service_tier"] = tier
    return msgspec.json.encode(body | (extra or {}))
