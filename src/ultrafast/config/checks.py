"""Rules that a type and a range cannot say: settings that are fine alone and wrong together, and "0 or at least"."""

from __future__ import annotations

from collections.abc import Mapping

from ultrafast.config.percentiles import parse_percentiles
from ultrafast.config.settings import Settings
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import ServiceTier

MAX_SEQUENCES = 253
"""`LLAMA_MAX_SEQ` of libllama b11549 is 256; the engine keeps three for itself."""
_SMALLEST = {"kv_capacity_tokens": 256, "max_request_tokens": 16, "max_step_tokens": 16}
_UNQUANTISED = ("f32", "f16", "bf16")


def check_consistency(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for the first contradiction. `origins` says where each given value came from."""
    engine = settings.engine
    for name, smallest in _SMALLEST.items():
        _check_not_tiny(f"engine.{name}", getattr(engine, name), smallest, origins)
    if engine.kv_type_v not in _UNQUANTISED and not engine.flash_attention:
        raise _conflict(
            "engine.kv_type_v", "engine.flash_attention", f"kv_type_v = {engine.kv_type_v} needs flash attention", origins
        )
    _check_not_above("engine.max_num_running", engine.max_num_running, "engine.max_step_tokens", engine.max_step_tokens, origins)
    _check_not_above(
        "engine.max_request_tokens", engine.max_request_tokens, "engine.kv_capacity_tokens", engine.kv_capacity_tokens, origins
    )
    _check_not_above(
        "engine.max_step_tokens", engine.max_step_tokens, "engine.kv_capacity_tokens", engine.kv_capacity_tokens, origins
    )
    if engine.kv_disk_bytes and not engine.kv_host_bytes:
        what = "KV goes to the disk by way of host memory, which is switched off"
        raise _conflict("engine.kv_disk_bytes", "engine.kv_host_bytes", what, origins)
    if engine.kv_disk_bytes and not engine.enable_prefix_cache:
        what = "without reuse of KV nothing is kept on disk"
        raise _conflict("engine.kv_disk_bytes", "engine.enable_prefix_cache", what, origins)
    max_tokens = settings.sampling.max_tokens or 0
    _check_not_above("sampling.max_tokens", max_tokens, "engine.max_request_tokens", engine.max_request_tokens, origins)
    num_sequences = engine.max_num_running + engine.max_num_paused + engine.max_num_cached
    if num_sequences > MAX_SEQUENCES:
        what = f"max_num_running + max_num_paused + max_num_cached = {num_sequences}, and there are {MAX_SEQUENCES} sequences"
        raise _conflict("engine.max_num_running", "engine.max_num_cached", what, origins)
    _check_shares(settings)
    _check_order(settings, origins)
    for tier in ServiceTier:
        _check_percentiles(f"tiers.{tier}.percentiles", getattr(settings.tiers, tier).percentiles, origins)


def _check_percentiles(dotted: str, texts: tuple[str, ...], origins: Mapping[str, str]) -> None:
    try:
        parse_percentiles(texts)
    except ValueError as error:
        raise ConfigError(
            f"{origins[dotted]}: {dotted}: {error}.",
            param=dotted,
            hint="Write for example ttft:p99<=300ms or tpot:p50<=40ms: p50, p90 or p99 of ttft, tpot, e2e or jitter, each once.",
        ) from error


def _check_shares(settings: Settings) -> None:
    total = sum(getattr(settings.tiers, tier).min_share for tier in ServiceTier)
    if total >= 1:
        raise ConfigError(
            f"The minimum shares of the tiers add up to {total:g}; nothing would be left to give by urgency.",
            param="tiers",
            hint="Keep the sum of tiers.*.min_share below 1.",
        )


def _check_order(settings: Settings, origins: Mapping[str, str]) -> None:
    if sorted(settings.tiers.order) != sorted(ServiceTier):
        raise ConfigError(
            f"{origins['tiers.order']}: tiers.order must name each tier once; got {', '.join(settings.tiers.order) or 'none'}.",
            param="tiers.order",
            hint=f"Name {', '.join(ServiceTier)}, the most urgent first.",
        )


def _check_not_tiny(dotted: str, value: int, smallest: int, origins: Mapping[str, str]) -> None:
    if 0 < value < smallest:
        raise ConfigError(
            f"{origins[dotted]}: {dotted} = {value} is too small to serve anything.",
            param=dotted,
            hint=f"Use at least {smallest}, or 0 to derive it.",
        )


def _check_not_above(small: str, small_value: int, large: str, large_value: int, origins: Mapping[str, str]) -> None:
    if small_value and large_value and small_value > large_value:
        raise _conflict(small, large, f"{small} = {small_value} is more than {large} = {large_value}", origins)


def _conflict(first: str, second: str, what: str, origins: Mapping[str, str]) -> ConfigError:
    places = [f"{key} from {origins[key]}" for key in (first, second) if key in origins]
    return ConfigError(
        f"Settings contradict each other: {what} ({'; '.join(places)}).", param=first, hint="Change one of the two."
    )
