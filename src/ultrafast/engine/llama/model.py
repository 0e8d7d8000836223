"""One loaded model and its context: sizes chosen before, facts read back after.

The context is one unified KV pool that all sequences share. A pool per sequence would split a mixed batch into several
forward passes (llama.cpp `llama-batch.cpp`, `split_equal`); in a unified pool one step is one pass, and a prefix can be
shared between sequences without copying.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ultrafast.core.errors import ConfigError, ModelFileError
from ultrafast.engine.llama import abi, flash_attention
from ultrafast.engine.llama.collected_log import CollectedLog
from ultrafast.engine.llama.interrupt import InterruptFlag
from ultrafast.engine.llama.machine import available_memory_bytes, check_threads, usable_cores
from ultrafast.engine.llama.vocab import read_metadata
from ultrafast.engine.options import EngineOptions
from ultrafast.kv.ledger import NUM_SPARE_SEQUENCES, num_sequences
from ultrafast.sched.speculation.track import MAX_DRAFTS

KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
_KV_TYPE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 1.0625,
    "q5_1": 0.75,
    "q5_0": 0.6875,
    "q4_1": 0.625,
    "q4_0": 0.5625,
    "iq4_nl": 0.5625,
}

BROKEN_OFF = 2
"""What `llama_decode` returns when its abort callback said stop."""
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ at b11549
NUM_TEMPORARY_SEQUENCES = 1
"""Beyond those of the ledger: the one through which pieces of KV are saved and loaded."""
CPU_STEP_TOKENS = 256
GPU_STEP_TOKENS = 2048
MAX_RECURRENT_PAUSED = 4
_MEMORY_SHARE = 0.25  # of the free memory that the KV pool may take by default


@dataclass(frozen=True, slots=True)
class ContextSizes:
    """What will be asked of libllama."""

    kv_capacity_tokens: int
    step_tokens: int
    num_sequences: int
    num_cached: int
    num_paused: int
    num_threads: int


class Model:
    """Owner of `llama_model`, `llama_context` and the thread pool; frees them in the right order.

    Attributes:
        threadpool: the compute threads, also for another context that never computes at the same time.
        interrupt_flag: breaks off a pass of this context, unless there is a GPU.
    """

    def __init__(
        self,
        library: abi.Library,
        options: EngineOptions,
        on_progress: Callable[[str, float], None],
        choose: Callable[[Model, EngineOptions], ContextSizes] | None = None,
        shared_threadpool: Any = None,
    ) -> None:
        """Load weights and create the context.

        `choose` says the sizes of the context once the weights are loaded; without it, `choose_sizes` does. `shared_threadpool`
        is the `threadpool` of another model, which must be closed after this one; without it, the model gets one of its own.

        Raises:
            ModelFileError: libllama cannot load the file, or it holds no text-generating model.
            ConfigError: the context does not fit in memory or flash attention cannot be enabled.
        """
        self.library = library
        self.options = options
        self.c = library.c
        self.handle = self._load_weights(options, on_progress)
        self.is_recurrent = bool(self.c.llama_model_is_recurrent(self.handle) or self.c.llama_model_is_hybrid(self.handle))
        self.sliding_window = max(0, self.c.llama_model_n_swa(self.handle))
        self.has_gpu = bool(self.c.llama_supports_gpu_offload()) and options.num_gpu_layers != 0
        try:
            self.sizes = (choose or choose_sizes)(self, options)
            self.context = self._create_context(options)
        except ConfigError:
            self.c.llama_model_free(self.handle)
            raise
        self.memory = self.c.llama_get_memory(self.context)
        self._owns_threadpool = shared_threadpool is None
        self.threadpool = self._new_threadpool(options.threadpool_poll) if shared_threadpool is None else shared_threadpool
        self.c.llama_attach_threadpool(self.context, self.threadpool, self.threadpool)

    @property
    def context_train_tokens(self) -> int:
        return int(self.c.llama_model_n_ctx_train(self.handle))

    @property
    def description(self) -> str:
        buffer = abi.ffi.new("char[]", 256)
        self.c.llama_model_desc(self.handle, buffer, 256)
        return bytes(abi.ffi.string(buffer)).decode("utf-8", "replace")

    def state_bytes(self, seq_id: int) -> int:
        """Size of a sequence's state as it would be saved."""
        return int(self.c.llama_state_seq_get_size_ext(self.context, seq_id, 0))

    def close(self) -> None:
        self.c.llama_detach_threadpool(self.context)
        self.c.llama_free(self.context)
        if self._owns_threadpool:
            self.c.ggml_threadpool_free(self.threadpool)
        self.c.llama_model_free(self.handle)

    def _load_weights(self, options: EngineOptions, on_progress: Callable[[str, float], None]) -> Any:
        def report(fraction: float, _user_data: Any) -> bool:
            on_progress("weights", fraction)
            return True

        progress = abi.ffi.callback("llama_progress_callback", report)  # kept alive by this frame while loading
        params = self.c.llama_model_default_params()
        params.n_gpu_layers = options.num_gpu_layers
        params.progress_callback = progress
        with CollectedLog() as errors:
            handle = self.c.llama_model_load_from_file(options.model_path.encode(), params)
        if handle == abi.ffi.NULL:
            raise ModelFileError(
                f"libllama cannot load {options.model_path}: {errors.text()}",
                hint="the file may be cut or of an unsupported architecture",
            )
        if self.c.llama_model_has_encoder(handle) or not self.c.llama_model_has_decoder(handle):
            self.c.llama_model_free(handle)
            raise ModelFileError(
                f"{options.model_path} is not a text-generating (decoder-only) model", hint="use a chat or base model"
            )
        return handle

    def _create_context(self, options: EngineOptions) -> Any:
        params = self.c.llama_context_default_params()
        params.n_ctx = self.sizes.kv_capacity_tokens
        # libllama aborts where a batch could not hold one token of each sequence.
        params.n_batch = params.n_ubatch = max(self.sizes.step_tokens, self.sizes.num_sequences + NUM_TEMPORARY_SEQUENCES)
        params.n_seq_max = self.sizes.num_sequences + NUM_TEMPORARY_SEQUENCES
        params.n_outputs_max_per_seq = MAX_DRAFTS + 1
        params.n_threads = params.n_threads_batch = self.sizes.num_threads
        params.kv_unified = True
        params.swa_full = options.swa_full
        params.flash_attn_type = flash_attention.AUTO if options.flash_attention else flash_attention.DISABLED
        self.interrupt_flag = InterruptFlag()
        if not self.has_gpu:
            params.abort_callback, params.abort_callback_data = self._abort_callback()
        params.type_k = KV_TYPES[options.kv_type_k]
        params.type_v = KV_TYPES[options.kv_type_v]
        with CollectedLog(flash_attention.LOG_WORDS) as lines:
            context = self.c.llama_init_from_model(self.handle, params)
        if context == abi.ffi.NULL:
            raise ConfigError(
                f"no context of {params.n_ctx} tokens (K {options.kv_type_k}, V {options.kv_type_v}): {lines.text()}",
                code="context_failed",
                hint="lower engine.kv_capacity_tokens, or use kv types f16",
            )
        self.has_flash_attention = flash_attention.is_on(lines.matched)
        if options.flash_attention and not self.has_flash_attention:
            self.c.llama_free(context)
            raise ConfigError(
                "flash attention could not be enabled for this model and device",
                code="flash_attention_off",
                hint="set engine.flash_attention = false",
            )
        return context

    def _abort_callback(self) -> tuple[Any, Any]:
        """What libllama asks between two operations of a pass, and what with."""
        return self.interrupt_flag.callback, self.interrupt_flag.data

    def _new_threadpool(self, poll: int) -> Any:
        params = abi.ffi.new("ggml_threadpool_params *", self.c.ggml_threadpool_params_default(self.sizes.num_threads))
        params.poll = poll
        return self.c.ggml_threadpool_new(params)


def choose_sizes(model: Model, options: EngineOptions) -> ContextSizes:
    """Turn settings, where 0 means "derive", into sizes.

    Raises:
        ConfigError: a size cannot work.
    """
    check_threads(options.num_threads)
    for name, kind in (("kv_type_k", options.kv_type_k), ("kv_type_v", options.kv_type_v)):
        if kind not in KV_TYPES:
            raise ConfigError(
                f"engine.{name} = {kind!r} is unknown", param=f"engine.{name}", hint="one of " + ", ".join(KV_TYPES)
            )
    capacity = options.kv_capacity_tokens or _default_capacity(model, options)
    if not model.has_gpu:
        check_memory(model, options, capacity)
    step = options.max_step_tokens or (GPU_STEP_TOKENS if model.has_gpu else CPU_STEP_TOKENS)
    # A recurrent state is allocated for every sequence that may exist, so idle ones are not free there.
    cached = min(options.max_num_cached, options.max_num_running) if model.is_recurrent else options.max_num_cached
    limit = MAX_SEQUENCES - NUM_TEMPORARY_SEQUENCES
    paused = options.max_num_paused or _default_paused(model, options.max_num_running, cached)
    sequences = num_sequences(options.max_num_running + paused, cached)
    if sequences > limit:
        raise ConfigError(
            f"{options.max_num_running} running, {paused} paused and {cached} cached sequences exceed "
            f"{limit - NUM_SPARE_SEQUENCES}",
            param="engine.max_num_running",
            hint="lower engine.max_num_running, engine.max_num_paused or engine.max_num_cached",
        )
    if step < options.max_num_running:
        raise ConfigError(
            f"engine.max_step_tokens = {step} is less than engine.max_num_running = {options.max_num_running}",
            param="engine.max_step_tokens",
            hint="every running sequence needs one token of each step: raise the first or lower the second",
        )
    return ContextSizes(capacity, min(step, capacity), sequences, cached, paused, options.num_threads or usable_cores())


def _default_paused(model: Model, num_running: int, num_cached: int) -> int:
    """As many as may run, where a sequence costs nothing (recurrent state is allocated for each) and the ids suffice."""
    wanted = min(num_running, MAX_RECURRENT_PAUSED) if model.is_recurrent else num_running
    return max(0, min(wanted, MAX_SEQUENCES - NUM_TEMPORARY_SEQUENCES - num_sequences(num_running, num_cached)))


def check_memory(model: Model, options: EngineOptions, capacity: int) -> None:
    """Check that there is memory for a KV pool.

    Linux grants memory that it does not have and kills somebody later; so the pool is checked before it is asked for.

    Raises:
        ConfigError: the KV pool is larger than what is free.
    """
    needed, available = capacity * estimated_bytes_per_token(model, options), available_memory_bytes()
    # A recurrent state does not grow with tokens: the estimate says nothing about it.
    if needed > available and not model.is_recurrent:
        raise ConfigError(
            f"a KV pool of {capacity} tokens needs {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB of memory are free",
            param="engine.kv_capacity_tokens",
            hint="lower engine.kv_capacity_tokens (--context), or use kv types q8_0",
        )


def _default_capacity(model: Model, options: EngineOptions) -> int:
    """Two full contexts where a quarter of the free memory allows it, else what it allows, in whole 256-token pages."""
    per_token = max(1, estimated_bytes_per_token(model, options))
    affordable = int(available_memory_bytes() * _MEMORY_SHARE) // per_token
    capacity = min(2 * model.context_train_tokens, max(affordable, 1024))
    return max(256, capacity // 256 * 256)


def estimated_bytes_per_token(model: Model, options: EngineOptions) -> int:
    """KV bytes of one token, from the file's metadata: for before there is a context that could be asked."""
    meta = read_metadata(model.c, model.handle)
    arch = meta.get("general.architecture", "")

    def number(key: str, default: int) -> int:
        text = meta.get(f"{arch}.{key}", "")
        return int(text) if text.isdigit() else default

    num_layers = int(model.c.llama_model_n_layer(model.handle))
    num_heads = number("attention.head_count", 1)
    num_kv_heads = number("attention.head_count_kv", num_heads)
    head = number("embedding_length", 0) // max(1, num_heads)
    key_bytes = number("attention.key_length", head) * _KV_TYPE_BYTES[options.kv_type_k]
    value_bytes = number("attention.value_length", head) * _KV_TYPE_BYTES[options.kv_type_v]
    return int(num_layers * num_kv_heads * (key_bytes + value_bytes))
