"""Every setting with its type, range, default and one sentence: the only list of settings there is (tiers: `tier_settings`).

`docs/configuration.md` and `ultrafast config --show` are made from it. Names carry their unit: `*_s` seconds, `*_ms`
milliseconds (only SLO targets, as people write them), `*_bytes`, `*_tokens`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ultrafast.config.section import Section
from ultrafast.config.tier_settings import TiersSettings

ENV_PREFIX = "ULTRAFAST_"
ENV_DELIMITER = "__"

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


class ServerSettings(Section):
    """The HTTP edge: where it listens and what it bears with."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on. `0.0.0.0` is every interface: set API keys then."
    )
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 takes a free one, and the ready line says which.")
    api_key_file: str | None = Field(
        default=None,
        description="File with one `KEY`, `NAME KEY` or `NAME KEY admin` per line; `#` starts a comment. "
        "Without keys anybody may call.",
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
        default=10.0,
        gt=0,
        description="A stream of a request with a place in the engine that is silent for so long gets a comment line.",
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
    begins_next_turns: bool = Field(
        default=True,
        description="After an answer, while nobody calls, compute what the conversation's next prompt will begin with.",
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
        description="Tokens that they may hold together; 0: a quarter of the pool, or a sixteenth on a CPU with host memory. "
        "Idle cells slow each step a little.",
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
    warmup_plan: str | None = Field(
        default=None,
        min_length=1,
        description="File of `ultrafast warmup --from-log`: shapes to warm and prefixes to read from disk at the start.",
    )
    enable_reservation: bool = Field(
        default=True,
        description="Hold back KV, step time and places for more urgent tiers whose requests are likely to come, as learnt.",
    )
    enable_side_context: bool = Field(
        default=True,
        description="Keep KV for one more prompt, computed beside the streams of others where that is faster (on a CPU).",
    )
    deterministic: Literal["off", "on", "always"] = Field(
        default="off",
        description="`on`: requests may ask to run alone and repeat exactly (KV for one more request); `always`: all do.",
    )
    draft_model_path: str | None = Field(
        default=None,
        min_length=1,
        description="A smaller model with the same vocabulary that guesses where the text does not repeat itself: path or name.",
    )
    libllama_path: str | None = Field(
        default=None,
        description="Another libllama of the same build; unset: `ULTRAFAST_LIBLLAMA`, if that is set.",
    )


class TokenizerSettings(Section):
    """From text to tokens."""

    cache_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=0,
        description="Memory for the tokens of known texts, and an eighth more for words: neither is tokenised again; 0: none.",
    )
    is_reloaded: bool = Field(
        default=False,
        description="Load the tokenizer anew for every chat prompt, as simple scripts do: only to measure what that costs.",
    )


class SamplingSettings(Section):
    """What applies when a request does not say. The model's own recommendation wins over a default, not over you."""

    temperature: float = Field(default=0.8, ge=0, le=2, description="0: always the most likely token.")
    top_k: int = Field(default=40, ge=0, description="Keep the k most likely tokens; 0: all.")
    top_p: float = Field(default=0.95, gt=0, le=1, description="Keep the smallest set of tokens with at least this probability.")
    min_p: float = Field(default=0.05, ge=0, le=1, description="Drop tokens less likely than this share of the most likely one.")
    repeat_penalty: float = Field(default=1.0, ge=0.01, le=10, description="Penalty on repeated tokens; 1: off.")
    max_tokens: int | None = Field(
        default=None, ge=1, description="Output limit of requests that set none; unset: what the context has room for."
    )


class RequestLogSettings(Section):
    """A log of requests for `ultrafast bench`, `simulate` and `warmup`: lengths, tiers and times, never a word of a text."""

    path: str | None = Field(default=None, min_length=1, description="File to write it to; unset: no log.")
    max_bytes: int = Field(
        default=64 * 1024 * 1024, ge=4096, description="Size at which the file is set aside as `.1` and a new one begun."
    )
    num_files: int = Field(default=4, ge=0, le=1000, description="Files kept beside the newest; older ones are deleted.")


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
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)
    tiers: TiersSettings = Field(default_factory=TiersSettings)
    logging: LoggingSettings = Field(default_factory=LoggingSettings)
    request_log: RequestLogSettings = Field(default_factory=RequestLogSettings)

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
