"""Checked request structs to the options that serving takes: names unified, tiers resolved, contradictions refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ultrafast.api.errors import ApiError, describe, lower_case_hint
from ultrafast.api.fields import MAX_BIAS, GenerationRequest, JsonObjectFormat, JsonSchemaFormat, ResponseFormats
from ultrafast.api.header_text import header_text, shown
from ultrafast.core.request import TIER_SLO, RequestSlo
from ultrafast.core.tiers import TIER_ALIASES, ServiceTier, parse_tier
from ultrafast.serving.contract import TEXT_FORMAT, GenerationOptions, ResponseFormat

MODE_TIERS = {"interactive": ServiceTier.PRIORITY, "standard": ServiceTier.DEFAULT, "batch": ServiceTier.FLEX}
PRIORITY_TIERS = {
    **TIER_ALIASES,
    "critical": ServiceTier.ULTRAFAST,
    "interactive": ServiceTier.PRIORITY,
    "high": ServiceTier.PRIORITY,
    "normal": ServiceTier.DEFAULT,
    "low": ServiceTier.FLEX,
}


_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?|\.[0-9]{1,20}")
MAX_SLO_MS = 86_400_000.0
"""A day."""
MAX_SUPERSEDE_KEY_BYTES = 256
_OBJECTIVE_HEADERS = frozenset(
    {b"x-slo-strict", b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-queue-ttl-ms", b"x-execution-ttl-ms", b"x-stainless-retry-count"}
)


def generation_options(
    request: GenerationRequest,
    headers: Mapping[bytes, bytes],
    *,
    tenant: str = "",
    max_num_choices: int,
    max_tokens: int | None,
    num_logprobs: int | None,
    echo: bool = False,
) -> GenerationOptions:
    """Return the options of a call. `tenant` is who calls: nobody shares KV with others, or ends their calls.

    Raises:
        ApiError: 400, with the parameter at fault.
    """
    num_choices = 1 if request.n is None else request.n
    if not 1 <= num_choices <= max_num_choices:
        raise _invalid("n", f"n must be an integer at least 1 and at most {max_num_choices}, got {describe(num_choices)}.")
    if request.stream_options is not None and not request.stream:
        raise _invalid("stream_options", "stream_options is only allowed together with stream: true.")
    min_tokens = request.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise _invalid("min_tokens", f"min_tokens must be at most max_tokens ({max_tokens}), got {min_tokens}.")
    return GenerationOptions(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        # vLLM and OpenAI-compatible clients write -1 for "all".
        top_k=0 if request.top_k == -1 else request.top_k,
        min_p=request.min_p,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        repeat_penalty=_repeat_penalty(request.repeat_penalty, request.repetition_penalty),
        logit_bias=_logit_bias(request.logit_bias) if request.logit_bias else (),
        seed=request.seed,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        num_choices=num_choices,
        num_logprobs=num_logprobs,
        response_format=TEXT_FORMAT if request.response_format is None else _response_format(request.response_format),
        requested_tier=requested_tier(request, headers),
        cache_salt=namespace(tenant, request.cache_salt or "") if tenant else request.cache_salt or "",
        is_cached=request.cache != "off",
        may_speculate=request.speculation is not False,
        is_deterministic=bool(request.deterministic),
        echo=echo,
        slo=requested_slo(headers),
        supersede_key=_supersede_key(headers, tenant) if b"x-supersede-key" in headers else None,
    )


def namespace(tenant: str, cache_salt: str) -> str:
    """Return within what a request shares KV: with equal keys and equal salts only. Neither can imitate the other."""
    return f"{tenant}\0{cache_salt}" if tenant else cache_salt


def requested_tier(request: GenerationRequest, headers: Mapping[bytes, bytes]) -> ServiceTier | None:
    """Return the tier a client asks for: body `service_tier`, else header `x-request-priority`, else body `mode`.

    Raises:
        ApiError: 400, the header has an unknown value.
    """
    if request.service_tier is not None:
        return parse_tier(request.service_tier)
    header = headers.get(b"x-request-priority")
    if header is not None:
        return PRIORITY_TIERS[_one_of(PRIORITY_TIERS, "x-request-priority", header_text(header))]
    return MODE_TIERS[request.mode] if request.mode is not None else None


def requested_slo(headers: Mapping[bytes, bytes]) -> RequestSlo:
    """Return a client's own objectives and limits: headers `x-slo-{ttft-ms,tpot-ms,strict}`, `x-{queue,execution}-ttl-ms`.

    Clients of the OpenAI libraries count their retries in `x-stainless-retry-count`; what is no count is nobody's retry.

    Raises:
        ApiError: 400, a header is not what it must be.
    """
    if _OBJECTIVE_HEADERS.isdisjoint(headers):
        return TIER_SLO
    strict = _one_of(("true", "false"), "x-slo-strict", header_text(headers.get(b"x-slo-strict", b"false")))
    retries = headers.get(b"x-stainless-retry-count", b"").strip()
    return RequestSlo(
        ttft_s=_milliseconds(headers, "x-slo-ttft-ms"),
        tpot_s=_milliseconds(headers, "x-slo-tpot-ms"),
        is_strict=strict == "true",
        queue_ttl_s=_milliseconds(headers, "x-queue-ttl-ms"),
        execution_ttl_s=_milliseconds(headers, "x-execution-ttl-ms"),
        is_retry=retries.isdigit() and retries.strip(b"0") != b"",
    )


def _one_of(allowed: Collection[str], name: str, given: str) -> str:
    """Return the value of a header that is one of a few words; in lower case, as OpenAI's values are."""
    if given in allowed:
        return given
    hint = lower_case_hint(given, allowed)
    raise ApiError(
        400, "invalid_value", f"{name} must be one of {', '.join(allowed)}, got {shown(given)}.", param=name, hint=hint
    )


def _supersede_key(headers: Mapping[bytes, bytes], tenant: str) -> tuple[str, str]:
    given = headers[b"x-supersede-key"]
    if not 0 < len(given) <= MAX_SUPERSEDE_KEY_BYTES:
        raise _invalid("x-supersede-key", f"x-supersede-key must have 1 to {MAX_SUPERSEDE_KEY_BYTES} bytes, got {len(given)}.")
    return (tenant, given.decode("latin-1"))


def _milliseconds(headers: Mapping[bytes, bytes], name: str) -> float | None:
    """A header's value in seconds; None when it is absent."""
    given = headers.get(name.encode())
    if given is None:
        return None
    text = header_text(given)
    # float() would also take "1_0", "nan" and "infinity".
    value = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 0 < value <= MAX_SLO_MS:
        raise _invalid(name, f"{name} must be a number above 0 and at most {MAX_SLO_MS:.0f} (milliseconds), got {shown(text)}.")
    return value / 1000


def _repeat_penalty(ours: float | None, vllm_name: float | None) -> float | None:
    if ours is not None and vllm_name is not None and ours != vllm_name:
        raise _invalid("repetition_penalty", "repetition_penalty and repeat_penalty are one parameter; give one of them.")
    return ours if ours is not None else vllm_name


def _logit_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, value in bias.items():
        # int() would also take "+1", " 1", "1_0", digits of other scripts, and "01" beside "1".
        if not _TOKEN_ID.fullmatch(key):
            raise _invalid(f"logit_bias.{key[:40]}", f"logit_bias: keys must be token ids, got {key[:40]!r}.")
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise _invalid(
                f"logit_bias.{key}", f"logit_bias.{key} must be a number from -{MAX_BIAS} to {MAX_BIAS}, got {value:g}."
            )
        pairs.append((int(key), value))
    return tuple(pairs)


def _response_format(given: ResponseFormats) -> ResponseFormat:
    if isinstance(given, JsonSchemaFormat):
        return ResponseFormat("json_schema", given.json_schema.schema)
    return ResponseFormat("json_object" if isinstance(given, JsonObjectFormat) else "text")


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(400, "invalid_value", message, param=param)
