"""Pinned prompts: system prompts of the configuration, computed at start and kept.

What is computed is what all conversations with that system prompt begin with: the common beginning of two of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ultrafast.core.clock import Clock
from ultrafast.core.errors import UltrafastError
from ultrafast.serving.beginnings import before_next_user, prefill_request
from ultrafast.serving.ports import EnginePort
from ultrafast.serving.prompts import Conversation
from ultrafast.serving.service import Service

_log = logging.getLogger("ultrafast.server")


async def compute_pinned(
    service: Service, engine: EnginePort, prompts: Iterable[str], namespaces: Iterable[str], clock: Clock
) -> int:
    """Compute the KV of each prompt in each namespace, one after another, as the least urgent work there is.

    Returns:
        how many tokens are pinned. A prompt that cannot be computed is left out, and logged.
    """
    num_tokens, spaces = 0, list(namespaces)
    for index, prompt in enumerate(prompts):
        try:
            system = [{"role": "system", "content": prompt}]
            tokens = await before_next_user(service.tokenize_chat, Conversation(system, []))
            for namespace in spaces:
                await _compute(engine, f"pinned:{index}:{namespace}", tokens, namespace, clock())
            num_tokens += len(tokens)
        except UltrafastError as error:
            _log.warning("pinned prompt %d is not computed: %s", index + 1, error.message)
    return num_tokens


async def _compute(engine: EnginePort, request_id: str, tokens: list[int], namespace: str, now: float) -> None:
    stream = engine.submit(prefill_request(request_id, tokens, namespace, now, is_pinned=True))
    try:
        async for _ in stream:
            pass
    finally:
        stream.abort()
