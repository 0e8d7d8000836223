"""Beginnings of prompts that are computed before anybody asks: what conversations have in common, and the request for its KV."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ultrafast.core.errors import EngineFailedError
from ultrafast.core.events import RequestFinished
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.prefix import common_prefix
from ultrafast.serving.ports import EngineStream
from ultrafast.serving.prompts import Conversation

TokenizeChat = Callable[[Conversation], Awaitable[list[int]]]

_PARAMS = SamplingParams(temperature=0.0, max_tokens=1)


async def before_next_user(tokenize: TokenizeChat, conversation: Conversation) -> list[int]:
    """Return the tokens with which the prompt begins once the user says anything next, whatever that is.

    Found by having them say two different things: no knowledge of the template is needed.

    Raises:
        InvalidRequestError: the template refuses the conversation.
    """
    one, other = [
        await tokenize(replace(conversation, messages=[*conversation.messages, {"role": "user", "content": text}]))
        for text in ("a", "b")
    ]
    return one[: common_prefix(one, 0, other, 0, len(one))]


def prefill_request(request_id: str, tokens: Sequence[int], cache_salt: str, now: float, *, is_pinned: bool = False) -> Request:
    """Return a request whose only purpose is the KV of its prompt: the least urgent work, never refused, no traffic."""
    return Request(
        request_id,
        tuple(tokens),
        _PARAMS,
        ServiceTier.FLEX,
        now,
        cache_salt=cache_salt,
        is_pinned=is_pinned,
        is_admitted=True,
        is_internal=True,
        may_speculate=False,
    )


async def end_of(stream: EngineStream) -> RequestFinished:
    """Return how a request ended whose tokens nobody wants; leaving early aborts it.

    Raises:
        EngineFailedError: the engine did not say.
    """
    try:
        async for batch in stream:
            if isinstance(batch[-1], RequestFinished):
                return batch[-1]
    finally:
        stream.abort()
    raise EngineFailedError("the engine ended a stream without saying why")
