"""Every setting with its type, range, default and one sentence: the only list of settings there is.

`docs/configuration.md` and `ultrafast config --show` are made from it. Names carry their unit: `*_s` seconds, `*_ms`
milliseconds (only SLO targets, as people write them), `*_bytes`, `*_tokens`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ultrafast.core.tiers import ServiceTier

ENV_PREFIX = "ULTRAFAST_"
ENV_DELIMITER = "__"

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


class Section(BaseModel):
    """A group of settings. Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerSettings(Section):
    """The HTTP edge: where it listens and what it bears with."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on. `0.0.0.0` is every interface: set API keys then."
    )
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 takes a free one, and the ready line says which.")
    api_key_file: str | None = Field(
        default=None,
        description="File with one `KEY` or `NAME KEY` per line; `#` starts a comment line. Without keys anybody may call.",
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="Largest request body; a larger one is answered with 413."
    )
    max_num_choices: int = Field(default=16, ge=1, le=128, description="Largest `n` of a request.")
    is_metrics_open: bool = Field(default=False, description="With API keys set, answer `/metrics` to callers without one too.")
    is_dashboard_open: bool = Field(
        default=False, description="With API keys set, show the dashboard's figures to callers without one too."
    )
    keepalive_interval_s: float = Field(
        default=10.0, gt=0, description="A stream that is silent for so long gets a comment line."
    )
    write_stall_timeout_s: float = Field(
        default=30.0, gt=0, description="A client that takes nothing for so long is disconnected."
    )
    read_timeout_s: float = Field(default=30.0, gt=0, description="A request must have arrived completely within this time.")
    drain_timeout_s: float = Field(
        default=30.0, ge=0, description="After SIGTERM, running requests have this long to finish before they get an error."
    )
    stall_after_s: float = Field(
        default=30.0, gt=0, description="With work pending and no finished step for so long, `/health/ready` answers 503."
    )


class ModelSettings(Section):
    """Which model is served, and under what name."""

    path_or_name: str = Field(
        default="smollm2-135m-instruct",
        min_length=1,
        description="Path of a `.gguf` file, or a name that `ultrafast models list` knows.",
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name in `/v1/models` and in answers; unset: the model's name, or the file name without ending.",
    )
    pinned_prompts: tuple[str, ...] = Field(
        default=(), description="System prompts that are computed at the start and kept; `@FILE` reads one from a file."
    )
    chat_template_file: str | None = Field(
        default=None, description="Jinja chat template to use instead of the one in the model file."
    )


class EngineSettings(Section):
    """The embedded engine. 0 derives the value from the machine and the model where it says so."""

    num_threads: int = Field(
        default=0,
        ge=0,
        description="Threads of the forward pass; 0: one per core that the process may use, and never more than that.",
    )
    kv_capacity_tokens: int = Field(
        default=0,
        ge=0,
        description="Size of the KV pool, shared by all sequences; 0: from the model's context and the free memory.",
    )
    max_request_tokens: int = Field(
        default=0, ge=0, description="Limit of prompt plus output of one request; 0: the model's context, at most the KV pool."
    )
    max_step_tokens: int = Field(default=0, ge=0, description="Token budget of one step; 0: by device.")
    step_target_s: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="While others decode, prefill chunks are sized so that a step takes about this long; 0: by device.",
    )
    max_num_running: int = Field(default=32, ge=1, le=200, description="Sequences that may run at once; further requests wait.")
    max_num_paused: int = Field(
        default=0,
        ge=0,
        le=200,
        description="Sequences that may stand aside for more urgent ones and keep their KV; 0: as many as may run.",
    )
    max_num_cached: int = Field(
        default=64, ge=0, le=200, description="Finished sequences whose KV may stay on the device for reuse."
    )
    max_cached_tokens: int = Field(
        default=0,
        ge=0,
        description="Tokens that they may hold together; 0: a quarter of the pool. An idle cache slows every step a little.",
    )
    kv_type_k: KvType = Field(default="f16", description="Element type of the keys in the KV cache.")
    kv_type_v: KvType = Field(default="f16", description="Element type of the values; a quantised one needs flash attention.")
    flash_attention: bool = Field(default=True, description="Require flash attention; starting fails where it cannot be enabled.")
    swa_full: bool = Field(
        default=True,
        description="Keep the whole context of sliding-window layers, so that any prefix can be reused; costs memory.",
    )
    num_gpu_layers: int = Field(default=-1, ge=-1, description="Layers on the GPU; -1: all that fit. Ignored by a CPU build.")
    threadpool_poll: int = Field(default=50, ge=0, le=100, description="How eagerly idle compute threads spin; 0: sleep at once.")
    enable_prefix_cache: bool = Field(default=True, description="Reuse the KV of equal prompt beginnings between requests.")
    kv_host_bytes: int = Field(
        default=-1,
        ge=-1,
        description="Host memory for KV that has no place on the device; -1: a tenth of the free memory, at most 4 GiB; 0: none.",
    )
    kv_disk_bytes: int = Field(
        default=0,
        ge=0,
        description="Disk space for KV, which then survives a restart; 0: none. The files say what was in the prompts.",
    )
    kv_disk_path: str | None = Field(
        default=None, min_length=1, description="Folder for it; unset: `kv` in the user's cache folder."
    )
    kv_ttl_s: float = Field(
        default=86_400.0, gt=0, description="KV in host memory or on disk that was not used for so long is dropped."
    )
    speculation: Literal["auto", "off"] = Field(
        default="auto",
        description="Guess tokens that repeat earlier text and check several per step, where that is measured to pay.",
    )
    enable_reservation: bool = Field(
        default=True,
        description="Hold back KV, step time and places for more urgent tiers whose requests are likely to come, as learnt.",
    )
    deterministic: Literal["off", "on", "always"] = Field(
        default="off",
        description="`on`: requests may ask to run alone and repeat exactly (KV for one more request); `always`: all do.",
    )
    libllama_path: str | None = Field(
        default=None,
        description="Another libllama of the same build; unset: `ULTRAFAST_LIBLLAMA`, if that is set.",
    )


class SamplingSettings(Section):
    """What applies when a request does not say. The model's own recommendation wins over a default, not over you."""

    temperature: float = Field(default=0.8, ge=0, le=2, description="0: always the most likely token.")
    top_k: int = Field(default=40, ge=0, description="Keep the k most likely tokens; 0: all.")
    top_p: float = Field(default=0.95, gt=0, le=1, description="Keep the smallest set of tokens with at least this probability.")
    min_p: float = Field(default=0.05, ge=0, le=1, description="Drop tokens less likely than this share of the most likely one.")
    repeat_penalty: float = Field(default=1.0, gt=0, le=10, description="Penalty on repeated tokens; 1: off.")
    max_tokens: int | None = Field(
        default=None, ge=1, description="Output limit of requests that set none; unset: what the context has room for."
    )


_E2E = "Objective for the time from the arrival to the last byte; 0: none."
_JITTER = "Objective for the standard deviation of the gaps between deltas; 0: none."
_MAX_PROMPT = "Condition of the objectives: requests with longer prompts are counted apart; 0: no condition."
_MAX_OUTPUT = "Condition of the objectives: requests with longer outputs are counted apart; 0: no condition."
_MAX_ARRIVALS = "Condition of the objectives: calls that come while more than so many came per second are counted apart; 0: none."
_PRICE_INPUT = "Price of a million prompt tokens that are computed."
_PRICE_CACHED = "Price of a million prompt tokens that the prefix cache has."
_PRICE_OUTPUT = "Price of a million output tokens."
_MAX_WAITING = "Requests that may wait for a place; further ones are refused."
_MAX_WAITING_TOKENS = "Prompt tokens that they may have together; 0: no bound."
_QUEUE_TTL = "Longest wait for a place, seconds; then the request is refused. A client can only shorten it."
_DOWNGRADE = "Serve in the next tier that can be in time, and say so, when this one cannot."


class TierTargets(Section):
    """One service tier. The objectives become edges of the latency histograms, so that attainment is exact."""

    ttft_ms: float = Field(gt=0, description="Time to first token.")
    tpot_ms: float = Field(gt=0, description="Time per output token after the first.")
    e2e_ms: float = Field(default=0, ge=0, description=_E2E)
    jitter_ms: float = Field(default=0, ge=0, description=_JITTER)
    max_prompt_tokens: int = Field(default=0, ge=0, description=_MAX_PROMPT)
    max_output_tokens: int = Field(default=0, ge=0, description=_MAX_OUTPUT)
    max_arrivals_per_s: float = Field(default=0, ge=0, description=_MAX_ARRIVALS)
    min_share: float = Field(default=0.0, ge=0, le=0.5, description="Part of the step time that is this tier's at least.")
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    max_waiting_tokens: int = Field(default=0, ge=0, description=_MAX_WAITING_TOKENS)
    queue_ttl_s: float = Field(default=300, gt=0, description=_QUEUE_TTL)
    is_downgradable: bool = Field(default=False, description=_DOWNGRADE)
    price_input: float = Field(default=0, ge=0, description=_PRICE_INPUT)
    price_cached_input: float = Field(default=0, ge=0, description=_PRICE_CACHED)
    price_output: float = Field(default=0, ge=0, description=_PRICE_OUTPUT)


class UltrafastTargets(TierTargets):
    """Tier `ultrafast`."""

    ttft_ms: float = Field(default=200, gt=0, description="Objective for the time to first token of tier `ultrafast`.")
    tpot_ms: float = Field(default=50, gt=0, description="Objective for the time per output token of tier `ultrafast`.")
    min_share: float = Field(
        default=0.0, ge=0, le=0.5, description="Part of the step time that tier `ultrafast` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=30, gt=0, description=_QUEUE_TTL)


class PriorityTargets(TierTargets):
    """Tier `priority`."""

    ttft_ms: float = Field(default=500, gt=0, description="Objective for the time to first token of tier `priority`.")
    tpot_ms: float = Field(default=75, gt=0, description="Objective for the time per output token of tier `priority`.")
    min_share: float = Field(
        default=0.1, ge=0, le=0.5, description="Part of the step time that tier `priority` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=60, gt=0, description=_QUEUE_TTL)


class DefaultTargets(TierTargets):
    """Tier `default`."""

    ttft_ms: float = Field(default=2000, gt=0, description="Objective for the time to first token of tier `default`.")
    tpot_ms: float = Field(default=150, gt=0, description="Objective for the time per output token of tier `default`.")
    min_share: float = Field(
        default=0.1, ge=0, le=0.5, description="Part of the step time that tier `default` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=300, gt=0, description=_QUEUE_TTL)


class FlexTargets(TierTargets):
    """Tier `flex`."""

    ttft_ms: float = Field(default=30000, gt=0, description="Objective for the time to first token of tier `flex`.")
    tpot_ms: float = Field(default=500, gt=0, description="Objective for the time per output token of tier `flex`.")
    min_share: float = Field(
        default=0.05, ge=0, le=0.5, description="Part of the step time that tier `flex` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=10000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=3600, gt=0, description=_QUEUE_TTL)


class TiersSettings(Section):
    """What each service tier promises, costs and may take."""

    order: tuple[str, ...] = Field(
        default=tuple(tier.value for tier in ServiceTier), description="All tiers, the most urgent first."
    )
    currency: str = Field(default="USD", min_length=1, max_length=8, description="Currency of the prices, a name only.")
    ultrafast: UltrafastTargets = Field(default_factory=UltrafastTargets)
    priority: PriorityTargets = Field(default_factory=PriorityTargets)
    default: DefaultTargets = Field(default_factory=DefaultTargets)
    flex: FlexTargets = Field(default_factory=FlexTargets)


class LoggingSettings(Section):
    """Logs go to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe level that is written."
    )
    format: Literal["text", "json"] = Field(
        default="text", description="`text` for people, `json` for machines: one object per line."
    )
    is_content_logged: bool = Field(
        default=False, description="Write prompts and answers into the log. Off: never a word of them."
    )


class Settings(BaseSettings):
    """All settings, checked. Made by `config.load.load_settings`; `Settings()` is the defaults and reads nothing."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        env_ignore_empty=True,
    )

    server: ServerSettings = Field(default_factory=ServerSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)
    tiers: TiersSettings = Field(default_factory=TiersSettings)
    logging: LoggingSettings = Field(default_factory=LoggingSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in: `config.load` reads the sources itself, because it must know where each value came from."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)
