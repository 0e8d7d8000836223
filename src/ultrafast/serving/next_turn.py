"""The next turn of a conversation, begun while nobody wants the engine.

    answer --IDLE_S without a call--> history + answer + "<|im_end|><|im_start|>user" computed, as the least urgent work there is
                                      |--- what the next prompt begins with, whatever the user says ---|
    next call ----------------------> what is not done by then is dropped at once

The last token of an answer is never fed to the model, and a template puts some between the answer and the next question: a third
of what a short next turn has to compute. Where the answer's text is not tokenised as it was sampled, or the template shows it
differently, that part is computed ahead too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from ultrafast.core.clock import Clock
from ultrafast.core.errors import UltrafastError
from ultrafast.core.request import FinishReason
from ultrafast.serving.beginnings import TokenizeChat, before_next_user, end_of, prefill_request
from ultrafast.serving.ports import EnginePort, EngineStream
from ultrafast.serving.prompts import Conversation

_log = logging.getLogger("ultrafast.server")

IDLE_S = 0.5
"""Nobody calls for so long: scripts that go on at once are not held up, and people read longer."""
MAX_TURNS = 8
"""Of a burst of answers, the newest: each holds a conversation in memory, and the last of them waits for the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """A conversation with its answer, and whose cache it is in."""

    conversation: Conversation
    cache_salt: str


class NextTurns:
    """Used on one event loop.

    `IDLE_S` after the last call has ended, the turns noted since are begun: the newest last, so that it stays on the device.

    Args:
        tokenize: gives the tokens of a conversation, exactly as a call would send them.
    """

    def __init__(self, engine: EnginePort, tokenize: TokenizeChat, clock: Clock, *, idle_s: float = IDLE_S) -> None:
        self._engine = engine
        self._tokenize = tokenize
        self._clock = clock
        self._idle_s = idle_s
        self._answered: deque[Answered] = deque(maxlen=MAX_TURNS)
        self._num_calls = 0
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = asyncio.Event()
        self._stream: EngineStream | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Around every call: nothing is computed ahead meanwhile, and the engine is told to drop what was before this returns."""
        self._num_calls += 1
        self._is_idle.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stream is not None:
            self._stream.abort()
        try:
            yield
        finally:
            self._num_calls -= 1
            if self._answered and not self._num_calls:
                self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._is_idle.set)

    def note(self, conversation: Conversation, answer: str, cache_salt: str) -> None:
        """A call was answered with this text."""
        messages = [*conversation.messages, {"role": "assistant", "content": answer}]
        self._answered.append(Answered(replace(conversation, messages=messages), cache_salt))

    async def run(self) -> None:
        """Begin the turns whenever it is idle; until it is cancelled."""
        while True:
            await self._is_idle.wait()
            if not self._answered:
                self._is_idle.clear()
                continue
            answered = self._answered[0]
            try:
                is_done = await self._compute(answered)
            except UltrafastError as error:  # a template that wants no further turn, an engine that stops: nobody waits for it
                _log.debug("a next turn is not begun: %s", error.message)
                is_done = True
            if is_done and answered in self._answered:
                self._answered.remove(answered)

    async def _compute(self, answered: Answered) -> bool:
        """Returns False when a call came in between: later again."""
        tokens = await before_next_user(self._tokenize, answered.conversation)
        if not self._is_idle.is_set():
            return False
        request = prefill_request(f"next-turn:{next(self._numbers)}", tokens, answered.cache_salt, self._clock())
        self._stream = self._engine.submit(request)
        try:
            return (await end_of(self._stream)).reason is not FinishReason.ABORT
        finally:
            self._stream = None
