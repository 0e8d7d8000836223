"""What an engine child needs to know before it starts, and what it says about itself once it is ready."""

from __future__ import annotations

from dataclasses import dataclass

from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy

DEFAULT_STEP_TARGET_S = 0.05
"""A decode of others waits at most about this long for a prefill chunk: 20 tokens/s at worst is still faster than reading."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings of one embedded engine. Zero means "derive it from the machine and the model" where it says so.

    Attributes:
        model_path: GGUF file, already checked.
        num_threads: threads of the forward pass; 0 = one per core that this process may use. Never more than that.
        kv_capacity_tokens: size of the KV pool in tokens, shared by all sequences; 0 = from the model's context and free memory.
        max_request_tokens: limit of prompt + output of one request; 0 = min(model's context, KV pool).
        max_step_tokens: token budget of one step (batch size); 0 = by device.
        step_target_s: while others decode, prefill chunks are sized so that a step takes about this long, seconds; 0 = by device.
        max_num_running: sequences that may run at once.
        max_num_paused: sequences that may stand aside for more urgent ones and keep their KV; 0 = as many as may run, if
            there are so many sequences.
        max_num_cached: finished sequences whose KV may stay on the device for reuse.
        max_cached_tokens: tokens they may hold together; 0 = a quarter of the pool, a sixteenth on a CPU with host memory for KV.
            Every step attends (masked) over all cells up to the highest used one, so an idle cache slows the running requests
            down.
        kv_type_k, kv_type_v: element types of the KV cache: f16, bf16, f32, q8_0, q4_0, ...
        flash_attention: require flash attention; starting fails where it cannot be enabled.
        swa_full: keep the whole context of sliding-window layers, so that any prefix can be reused.
        num_gpu_layers: layers on the GPU; -1 = all that fit; ignored by a CPU build.
        threadpool_poll: 0-100, how eagerly idle compute threads spin (0 = sleep at once).
        enable_prefix_cache: reuse KV between requests.
        kv_host_bytes: host memory for KV that has no place on the device; -1 = by the free memory, 0 = none.
        kv_disk_bytes: disk space for KV; 0 = none. Needs host memory.
        kv_disk_path: folder for it; None = `kv` in the user's cache folder, which whoever makes the options fills in.
        kv_ttl_s: KV outside the device that was not used for so long is dropped, seconds.
        tier_order: the service tiers, the most urgent first. tiers: what each promises, in that order.
        speculation: "auto": guess tokens from the text so far and check several per step, where that is measured to pay; "off".
        warmup_plan: file that says which shapes to warm and which prefixes to read from disk at the start; None = all shapes.
        enable_reservation: hold back room for more urgent tiers whose requests are likely to come.
        deterministic: "on": requests may ask to run alone and repeat exactly, which takes KV for one more request of the largest
            size; "always": all do; "off".
        draft_model_path: GGUF file of a smaller model with the same vocabulary that guesses where the text does not repeat
            itself; None = there is none. Not loaded where this engine does not speculate.
        enable_side_context: keep KV for one more long prompt, so that it is computed beside the steps of others where that is
            faster (on a CPU, and if a part of the free memory suffices).
        libllama_path: another libllama instead of the one that ships with the `xllamacpp` wheel; same ABI check.
    """

    model_path: str
    num_threads: int = 0
    kv_capacity_tokens: int = 0
    max_request_tokens: int = 0
    max_step_tokens: int = 0
    step_target_s: float = 0.0
    max_num_running: int = 32
    max_num_cached: int = 64
    max_cached_tokens: int = 0
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = True
    swa_full: bool = True
    num_gpu_layers: int = -1
    threadpool_poll: int = 50
    enable_prefix_cache: bool = True
    kv_host_bytes: int = 0
    kv_disk_bytes: int = 0
    kv_disk_path: str | None = None
    kv_ttl_s: float = 86_400.0
    speculation: str = "auto"
    warmup_plan: str | None = None
    enable_reservation: bool = True
    deterministic: str = "off"
    draft_model_path: str | None = None
    libllama_path: str | None = None
    enable_side_context: bool = True
    max_num_paused: int = 0
    tier_order: tuple[ServiceTier, ...] = tuple(ServiceTier)
    tiers: tuple[TierPolicy, ...] = DEFAULT_POLICIES

    @property
    def may_speculate(self) -> bool:
        """The one place that says whether these settings allow guesses at all, from whatever source."""
        return self.speculation == "auto"


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """What the engine really got as its draft model. `kv_bytes`: its whole KV pool, allocated at the start."""

    model_description: str
    num_parameters: int
    model_bytes: int
    vocab_size: int
    kv_capacity_tokens: int
    kv_bytes: int
    max_request_tokens: int
    max_pass_tokens: int
    num_sequences: int


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine really got, read back from libllama after loading; never what was asked for.

    Attributes:
        build: libllama build, for example "b11549".
        has_flash_attention: asked of the context, not of the settings.
        can_trim: a sequence can be cut at any position (False for recurrent and hybrid models): decides how KV is reused.
        sliding_window: 0 when the model has none.
        state_bytes_per_token: KV bytes that one token costs.
        state_bytes_fixed: bytes of a sequence's state beside those (recurrent state).
        draft: None when there is no draft model.
        can_interrupt: a step can be broken off while it runs.
        max_side_tokens: longest prompt that can be computed beside the steps; 0 = none.
        idle_cell_s: what each cell in use adds to each row of a step that does not read it, seconds; 0 = not measured.
        model_hash: of the content of the model file (sampled, see `kvstore.model_key`); "" for an engine without one.
    """

    build: str
    model_description: str
    num_parameters: int
    model_bytes: int
    context_train_tokens: int
    kv_capacity_tokens: int
    max_request_tokens: int
    max_step_tokens: int
    max_num_running: int
    max_num_cached: int
    max_cached_tokens: int
    num_threads: int
    vocab_size: int
    has_flash_attention: bool
    kv_type_k: str
    kv_type_v: str
    can_trim: bool
    is_recurrent: bool
    sliding_window: int
    state_bytes_per_token: int
    state_bytes_fixed: int
    load_s: float
    warmup_s: float
    deterministic: str = "off"
    max_num_paused: int = 0
    draft: DraftFacts | None = None
    can_interrupt: bool = False
    max_side_tokens: int = 0
    idle_cell_s: float = 0.0
    model_hash: str = ""
