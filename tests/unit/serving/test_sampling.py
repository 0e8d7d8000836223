from __future__ import annotations

from ultrafast.serving.contract import GenerationOptions
from ultrafast.serving.sampling import SamplingDefaults, concrete_seed, sampling_params

DEFAULTS = SamplingDefaults()


def test_defaults_apply_only_where_the_client_said_nothing() -> None:
    options = GenerationOptions(temperature=0.0, top_k=0, stop_token_ids=(7,), num_logprobs=0, logit_bias=((1, -5.0),))
    params = sampling_params(options, DEFAULTS, max_tokens=9, seed=3, grammar="g")
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 0, DEFAULTS.top_p, DEFAULTS.min_p)
    assert (params.max_tokens, params.seed, params.grammar, params.stop_token_ids) == (9, 3, "g", (7,))
    assert (params.num_logprobs, params.logit_bias) == (0, ((1, -5.0),))


def test_seeds_are_always_concrete() -> None:
    assert concrete_seed(7) == 7
    assert concrete_seed(-1) >= 0
    assert concrete_seed(None) != concrete_seed(None)
