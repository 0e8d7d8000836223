"""Further contexts on the weights of a loaded model.

LoneContext    for one sequence at a time: deterministic requests. Each sequence begins in an empty pool, so that token i lies in
               cell i whatever ran before; with the same cut of the prompt and nothing else in the step, every float is added in
               the same order.
SideContext    for the prompt that is computed beside the steps: its pass is suspended, and another context's runs meanwhile.
"""

from __future__ import annotations

from typing import Any

from ultrafast.engine.llama import abi
from ultrafast.engine.llama.model import ContextSizes, Model, check_memory
from ultrafast.engine.options import EngineOptions
from ultrafast.kv.ledger import num_sequences


class _SecondContext(Model):
    """The weights of another `Model`, which must be closed after this one."""

    def __init__(self, base: Model, options: EngineOptions, *, num_tokens: int, step_tokens: int) -> None:
        """Create the context.

        Raises:
            ConfigError: it does not fit in memory.
        """
        self.library = base.library
        self.c = base.c
        self.handle = base.handle
        self.is_recurrent = base.is_recurrent
        self.sliding_window = base.sliding_window
        self.has_gpu = base.has_gpu
        check_memory(self, options, num_tokens)
        self.sizes = ContextSizes(num_tokens, step_tokens, num_sequences(1, 0), 0, 0, base.sizes.num_threads)
        self.context = self._create_context(options)
        self.memory = self.c.llama_get_memory(self.context)


class LoneContext(_SecondContext):
    """Shares the thread pool too: it never computes at the same time."""

    def __init__(self, base: Model, options: EngineOptions, *, num_tokens: int, step_tokens: int) -> None:
        super().__init__(base, options, num_tokens=num_tokens, step_tokens=step_tokens)
        self.c.llama_attach_threadpool(self.context, base.threadpool, base.threadpool)

    def close(self) -> None:
        self.c.llama_detach_threadpool(self.context)
        self.c.llama_free(self.context)


class SideContext(_SecondContext):
    """Has a thread pool of its own, which stands still in the middle of an operation graph, and asks `callback` between two."""

    def __init__(self, base: Model, options: EngineOptions, *, num_tokens: int, step_tokens: int, callback: Any) -> None:
        """`callback`: `bool (void *)`, true to break the pass off; must outlive the context."""
        self._callback = callback
        super().__init__(base, options, num_tokens=num_tokens, step_tokens=step_tokens)
        self._threadpool = self._new_threadpool(options.threadpool_poll)
        self.c.llama_attach_threadpool(self.context, self._threadpool, self._threadpool)

    def _abort_callback(self) -> tuple[Any, Any]:
        return self._callback, abi.ffi.NULL

    def close(self) -> None:
        self.c.llama_detach_threadpool(self.context)
        self.c.llama_free(self.context)
        self.c.ggml_threadpool_free(self._threadpool)
