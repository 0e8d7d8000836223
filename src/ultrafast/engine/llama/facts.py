"""What a loaded model and its context really are: asked of libllama, never taken from the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ultrafast.core.step import SequenceWork
from ultrafast.engine.kvstore.model_key import model_hash
from ultrafast.engine.llama.batch import Batch
from ultrafast.engine.llama.model import Model
from ultrafast.engine.options import EngineFacts, EngineOptions

DEFAULT_CACHED_SHARE = 4
"""1/4 of the pool: with the bundled model's 16k pool, a full cache then costs a decode step about a fifth."""
BACKED_CACHED_SHARE = 16
"""1/16 on a CPU with host memory behind the pool: bringing KV back from there costs less than attending over it meanwhile."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What four tokens tell of a context's memory.

    Attributes:
        can_trim: a sequence can be cut anywhere.
        bytes_per_token, bytes_fixed: size of a sequence's state when it is saved.
    """

    can_trim: bool
    bytes_per_token: int
    bytes_fixed: int


def probe(model: Model, batch: Batch) -> Probed:
    """Write four tokens into an empty memory, and cut them. Leaves it empty."""
    c, memory = model.c, model.memory
    first, second = _state_bytes_after(model, batch, 0), _state_bytes_after(model, batch, 2)
    bytes_per_token = (second - first) // 2
    is_cut = bool(c.llama_memory_seq_rm(memory, 0, 1, -1)) and c.llama_memory_seq_pos_max(memory, 0) == 0
    c.llama_memory_clear(memory, True)
    return Probed(is_cut and not model.is_recurrent, bytes_per_token, max(0, first - 2 * bytes_per_token))


def read_facts(model: Model, options: EngineOptions, probed: Probed, vocab_size: int, load_s: float) -> EngineFacts:
    """Put together what is known after loading; the warm-up adds how long it took."""
    c = model.c
    capacity = int(c.llama_n_ctx(model.context))
    limit = min(capacity, model.context_train_tokens or capacity)
    return EngineFacts(
        build=model.library.build,
        model_description=model.description,
        num_parameters=int(c.llama_model_n_params(model.handle)),
        model_bytes=int(c.llama_model_size(model.handle)),
        context_train_tokens=model.context_train_tokens,
        kv_capacity_tokens=capacity,
        max_request_tokens=min(options.max_request_tokens or limit, capacity),
        max_step_tokens=min(model.sizes.step_tokens, int(c.llama_n_batch(model.context))),
        max_num_running=options.max_num_running,
        max_num_cached=model.sizes.num_cached,
        max_cached_tokens=options.max_cached_tokens or capacity // _cached_share(model, options),
        num_threads=model.sizes.num_threads,
        vocab_size=vocab_size,
        has_flash_attention=model.has_flash_attention,
        kv_type_k=options.kv_type_k,
        kv_type_v=options.kv_type_v,
        can_trim=probed.can_trim,
        is_recurrent=model.is_recurrent,
        sliding_window=model.sliding_window,
        state_bytes_per_token=probed.bytes_per_token,
        state_bytes_fixed=probed.bytes_fixed,
        load_s=load_s,
        warmup_s=0.0,
        max_num_paused=model.sizes.num_paused,
        can_interrupt=probed.can_trim and not model.has_gpu,
        model_hash=model_hash(Path(options.model_path)),
    )


def _state_bytes_after(model: Model, batch: Batch, start: int) -> int:
    """Write two tokens at `start` into sequence 0; returns the size of its state."""
    batch.fill((SequenceWork("probe", 0, start, (0, 0), samples=True),))
    code = model.c.llama_decode(model.context, batch.handle)
    assert code == 0, f"the probe step failed with {code}"
    return model.state_bytes(0)


def _cached_share(model: Model, options: EngineOptions) -> int:
    is_backed = options.enable_prefix_cache and options.kv_host_bytes != 0 and not model.has_gpu
    return BACKED_CACHED_SHARE if is_backed else DEFAULT_CACHED_SHARE
