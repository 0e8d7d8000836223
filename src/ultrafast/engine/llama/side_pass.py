"""The pass of a side chunk: a long prompt in a context of its own, suspended between two operations of its graph.

    side context   |matmul|norm|matmul|.......................|attention|matmul|.........|
                                      ^ go_on(): time for a step ^                ^
    main context                       |decode|prefill chunk|                      |decode|

libllama asks an abort callback, on the thread that began the pass, before each operation, and all other compute threads wait at
a barrier meanwhile. So the callback may take as long as it likes, and run a pass of another context, which has all cores. A
decode costs what it costs alone, the prompt is computed in chunks as long as with nobody there, and no gap is longer than one
operation and the decode itself; in one batch with the decodes a chunk would have to be so short that its tokens cost up to twice
as much.

KV     main seq [0, start) -> side, when another prompt was there before      side [start, end) -> main seq, after each chunk
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from ultrafast.core.errors import ConfigError
from ultrafast.core.step import SequenceWork, StepResult, StepStatus, TrimSequence
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.batch import Batch
from ultrafast.engine.llama.kv_state import KvState
from ultrafast.engine.llama.machine import available_memory_bytes
from ultrafast.engine.llama.model import BROKEN_OFF, Model, estimated_bytes_per_token
from ultrafast.engine.llama.second_context import SideContext
from ultrafast.engine.options import EngineFacts, EngineOptions
from ultrafast.sched.side import CHUNK_TOKENS

_MEMORY_SHARE = 0.125  # of the free memory that the context's KV may take
_MIN_CONTEXT_TOKENS = 512
"""A smaller context is of no use."""
_SEQUENCE = 0
_WARM_UP_TOKENS = 32


class MainContext(Protocol):
    """What is needed of the executor of the main context."""

    model: Model
    facts: EngineFacts

    def apply_kv(self, ops: tuple[TrimSequence, ...]) -> tuple[str, ...]: ...
    def save_kv(self, seq_id: int, begin: int, end: int) -> memoryview | None: ...
    def load_kv(self, seq_id: int, begin: int, end: int, data: memoryview) -> bool: ...


def open_side_pass(main: MainContext, options: EngineOptions) -> SidePass | None:
    """Create the context, as large as the longest request if a part of the free memory allows it; None: it is too little."""
    affordable = int(available_memory_bytes() * _MEMORY_SHARE) // max(1, estimated_bytes_per_token(main.model, options))
    num_tokens = min(main.facts.max_request_tokens, affordable // 256 * 256)
    if num_tokens < min(_MIN_CONTEXT_TOKENS, main.facts.max_request_tokens):
        return None
    try:
        return SidePass(main, options, num_tokens)
    except ConfigError:
        return None


class SidePass:
    """Implements `Executor.run_side` for the executor of the main context. The engine thread's.

    Attributes:
        max_tokens: longest prompt that it can compute.
    """

    def __init__(self, main: MainContext, options: EngineOptions, num_tokens: int) -> None:
        """Create the context. Raises ConfigError where it does not fit in memory."""
        self.max_tokens = num_tokens
        self._main = main
        self._callback = abi.ffi.callback("bool(void *)", self._on_operation)
        step_tokens = min(CHUNK_TOKENS, num_tokens)
        self._context = SideContext(main.model, options, num_tokens=num_tokens, step_tokens=step_tokens, callback=self._callback)
        self._c = main.model.c
        self._kv = KvState(self._c, self._context.context, self._context.sizes.num_sequences, can_trim=True)
        self._batch = Batch(step_tokens)
        self._request_id: str | None = None
        self._length = 0
        self._go_on: Callable[[], bool] = lambda: True
        self._error: BaseException | None = None
        self._suspended_s = 0.0
        self._is_running = False

    def run(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        """See `Executor.run_side`."""
        assert not self._is_running, "a side chunk in the midst of another"
        self._is_running = True
        try:
            return self._run(chunk, go_on)
        finally:
            self._is_running = False

    def _run(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        begin_s = time.monotonic()
        if not self._bring(chunk):
            return self._give_up(chunk, begin_s)
        self._batch.fill((chunk._replace(seq_id=_SEQUENCE),))
        self._go_on, self._suspended_s = go_on, 0.0
        code = self._c.llama_decode(self._context.context, self._batch.handle)
        self._main.model.library.is_error_expected = False
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if code == BROKEN_OFF:
            is_whole = self._kv.length(_SEQUENCE) == self._length
            return StepResult(StepStatus.INTERRUPTED if is_whole else StepStatus.FATAL, duration_s=self._own_s(begin_s))
        if code != 0:
            return self._give_up(chunk, begin_s) if code > 0 else StepResult(StepStatus.FATAL)
        self._length += len(chunk.tokens)
        data = self._kv.save(_SEQUENCE, chunk.start, self._length)
        if data is None or not self._main.load_kv(chunk.seq_id, chunk.start, self._length, data):
            return self._give_up(chunk, begin_s)
        return StepResult(StepStatus.OK, duration_s=self._own_s(begin_s))

    def warm_up(self) -> None:
        """Have the graph built and the threads started before the first prompt needs them."""
        self._batch.fill((SequenceWork("warm-up", _SEQUENCE, 0, (0,) * min(_WARM_UP_TOKENS, self._batch.capacity), False),))
        self._go_on = lambda: True
        self._c.llama_decode(self._context.context, self._batch.handle)
        self._clear()

    def forget(self, request_id: str) -> None:
        """The request has ended, perhaps during this very pass; another one of that name has other tokens."""
        if self._request_id == request_id:
            self._request_id = None

    def close(self) -> None:
        self._context.close()

    def _on_operation(self, _data: Any) -> bool:
        """Between two operations; true breaks the pass off. Nothing may be raised into C."""
        begin_s = time.monotonic()
        try:
            must_stop = not self._go_on()
        except BaseException as error:  # noqa: BLE001 - raised again when C has returned
            self._error, must_stop = error, True
        self._suspended_s += time.monotonic() - begin_s
        self._main.model.library.is_error_expected = must_stop  # libllama takes a pass that is broken off for an error
        return must_stop

    def _bring(self, chunk: SequenceWork) -> bool:
        """See that the side context holds exactly what precedes the chunk."""
        if self._request_id != chunk.request_id or self._length < chunk.start:
            self._clear()
            if chunk.start:
                data = self._main.save_kv(chunk.seq_id, 0, chunk.start)
                if data is None or not self._kv.load(_SEQUENCE, 0, chunk.start, data):
                    return False
            self._request_id, self._length = chunk.request_id, chunk.start
        elif self._length > chunk.start:  # the main context has lost a part of it since
            self._c.llama_memory_seq_rm(self._context.memory, _SEQUENCE, chunk.start, -1)
            self._length = chunk.start
        return True

    def _give_up(self, chunk: SequenceWork, begin_s: float) -> StepResult:
        """Whatever failed, the prompt begins again: never wrong text."""
        self._clear()
        self._main.apply_kv((TrimSequence(chunk.seq_id, 0),))
        return StepResult(StepStatus.INVALID, duration_s=self._own_s(begin_s))

    def _clear(self) -> None:
        self._c.llama_memory_clear(self._context.memory, False)
        self._request_id, self._length = None, 0

    def _own_s(self, begin_s: float) -> float:
        return time.monotonic() - begin_s - self._suspended_s
