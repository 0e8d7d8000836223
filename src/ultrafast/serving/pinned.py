"""Pinned prompts: system prompts of the configuration, computed at start and kept; computed again when they were lost.

    start, engine lost, cache cleared  --recompute-->  [ prompt after prompt, tenant after tenant ]   in the background

What is computed is what all conversations with that system prompt begin with: the common beginning of two of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NoReturn

from ultrafast.core.clock import Clock
from ultrafast.core.errors import EngineFailedError, OverloadedError, UltrafastError, UnavailableError
from ultrafast.core.request import FinishReason
from ultrafast.serving.beginnings import before_next_user, end_of, prefill_request
from ultrafast.serving.ports import EnginePort
from ultrafast.serving.prompts import Conversation
from ultrafast.serving.service import Service

_log = logging.getLogger("ultrafast.server")


class PinnedPrompts:
    """Keeps the KV of prompts computed in each namespace, as the least urgent work there is. Runs on the event loop."""

    def __init__(
        self, service: Service, engine: EnginePort, prompts: Iterable[str], namespaces: Iterable[str], clock: Clock
    ) -> None:
        self._service = service
        self._engine = engine
        self._prompts = dict(enumerate(prompts, start=1))
        self._namespaces = list(namespaces)
        self._clock = clock
        self._is_wanted = asyncio.Event()
        self._is_wanted.set()

    def recompute(self) -> None:
        """What was computed may be lost: compute it again. What is still there costs next to nothing."""
        self._is_wanted.set()

    async def run(self) -> NoReturn:
        """Compute whenever that is wanted, the first time at once."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            num_tokens = await self.compute()
            _log.info("%d tokens of pinned prompts are computed", num_tokens)

    async def compute(self) -> int:
        """Compute each prompt in each namespace, one after another.

        Returns:
            how many tokens are pinned. A prompt that cannot be computed is left out, and logged. It is not tried again, unless
            there was only no engine or no room: one that crashes the engine would do so for ever.
        """
        num_tokens = 0
        for number, prompt in list(self._prompts.items()):
            try:
                system = Conversation([{"role": "system", "content": prompt}], [])
                tokens = await before_next_user(self._service.tokenize_chat, system)
                for namespace in self._namespaces:
                    await self._compute(f"pinned:{number}:{namespace}", tokens, namespace)
                num_tokens += len(tokens)
            except UltrafastError as error:
                _log.warning("pinned prompt %d is not computed: %s", number, error.message)
                if not isinstance(error, UnavailableError | OverloadedError):
                    del self._prompts[number]
        return num_tokens

    async def _compute(self, request_id: str, tokens: list[int], namespace: str) -> None:
        request = prefill_request(request_id, tokens, namespace, self._clock(), is_pinned=True)
        finished = await end_of(self._engine.submit(request))
        if finished.reason is FinishReason.ABORT:
            raise UnavailableError("the server is shutting down")
        if finished.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise EngineFailedError(finished.error or f"the engine ended it: {finished.reason}")
