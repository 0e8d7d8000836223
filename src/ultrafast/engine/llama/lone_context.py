"""A second context on the weights of a loaded model, for one sequence at a time: deterministic requests.

It begins each sequence in an empty pool, so that token i lies in cell i whatever ran before; with the same cut of the prompt and
nothing else in the step, every float is added in the same order.
"""

from __future__ import annotations

from ultrafast.engine.llama.model import ContextSizes, Model, check_memory
from ultrafast.engine.options import EngineOptions
from ultrafast.kv.ledger import num_sequences


class LoneModel(Model):
    """The weights and the thread pool of another `Model`, which must be closed after this one."""

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
        self._threadpool = base.threadpool
        self.c.llama_attach_threadpool(self.context, self._threadpool, self._threadpool)

    def close(self) -> None:
        self.c.llama_detach_threadpool(self.context)
        self.c.llama_free(self.context)
