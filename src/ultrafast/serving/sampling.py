"""From a call's options to the engine's parameters: the server's defaults where the client said nothing, and a seed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ultrafast.core.request import SamplingParams
from ultrafast.serving.contract import GenerationOptions

_SEED_RANGE = 1 << 63


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What applies when a request does not say. `max_tokens` None = whatever the context has room for."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    max_tokens: int | None = None


def concrete_seed(seed: int | None) -> int:
    """Return a seed: the client's, or a random one, so that choice i can have seed + i."""
    return int.from_bytes(os.urandom(8)) % _SEED_RANGE if seed is None else seed % _SEED_RANGE


def sampling_params(
    options: GenerationOptions, defaults: SamplingDefaults, *, max_tokens: int, seed: int, grammar: str | None
) -> SamplingParams:
    """Combine options and defaults. `max_tokens` is the limit that `limits.output_limit` found."""
    return SamplingParams(
        temperature=defaults.temperature if options.temperature is None else options.temperature,
        top_k=defaults.top_k if options.top_k is None else options.top_k,
        top_p=defaults.top_p if options.top_p is None else options.top_p,
        min_p=defaults.min_p if options.min_p is None else options.min_p,
        frequency_penalty=options.frequency_penalty,
        presence_penalty=options.presence_penalty,
        repeat_penalty=defaults.repeat_penalty if options.repeat_penalty is None else options.repeat_penalty,
        logit_bias=options.logit_bias,
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=options.min_tokens,
        ignore_eos=options.ignore_eos,
        stop_token_ids=options.stop_token_ids,
        num_logprobs=options.num_logprobs,
        grammar=grammar,
    )
