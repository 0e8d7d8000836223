"""Known parameters that this server does not implement: accepted when they ask for nothing, refused otherwise.

An unknown field is ignored, as OpenAI-compatible servers do. A known one that would change the answer must not be.
"""

from __future__ import annotations

from typing import Any

from ultrafast.api.errors import ApiError, describe

_TEXT_ONLY = "this server takes and makes text only"
_FORMAT = "use response_format with type json_schema"
_SAMPLER = "use temperature, top_p, top_k, min_p and the penalties"
_TIERS = "use service_tier"

# Name: (values that ask for nothing, beside null; what to do instead)
_PARAMETERS: dict[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), _TEXT_ONLY),
    "modalities": ((["text"],), _TEXT_ONLY),
    "mm_processor_kwargs": (({},), _TEXT_ONLY),
    "suffix": (("",), "put the text into the prompt"),
    "functions": (([],), "use tools"),
    "function_call": (("none", "auto"), "use tool_choice"),
    "parallel_tool_calls": ((True,), "leave it out; a model may always make several calls"),
    "web_search_options": ((), "search yourself and put the result into a message"),
    "verbosity": (("medium",), "ask for it in a message"),
    "best_of": ((1,), "use n"),
    "use_beam_search": ((False,), _SAMPLER),
    "length_penalty": ((1, 1.0), _SAMPLER),
    "typical_p": ((1, 1.0), _SAMPLER),
    "tfs_z": ((1, 1.0), _SAMPLER),
    "mirostat": ((0,), _SAMPLER),
    "dynatemp_range": ((0, 0.0), _SAMPLER),
    "xtc_probability": ((0, 0.0), _SAMPLER),
    "dry_multiplier": ((0, 0.0), _SAMPLER),
    "bad_words": (([],), "use logit_bias"),
    "allowed_token_ids": (([],), "use logit_bias"),
    "prompt_logprobs": ((), "use logprobs"),
    "truncate_prompt_tokens": ((), "shorten the prompt yourself"),
    "include_stop_str_in_output": ((False,), "add the stop string yourself; the finish reason says that one matched"),
    "skip_special_tokens": ((True,), "special tokens are never part of the text"),
    "continue_final_message": ((False,), "use /v1/completions"),
    "return_token_ids": ((False,), "use /tokenize"),
    "return_tokens_as_token_ids": ((False,), "use /tokenize"),
    "documents": (([],), "put the documents into a message"),
    "guided_json": ((), _FORMAT),
    "guided_regex": ((), _FORMAT),
    "guided_choice": ((), _FORMAT),
    "guided_grammar": ((), _FORMAT),
    "structured_outputs": ((), _FORMAT),
    "grammar": (("",), _FORMAT),
    "json_schema": ((), _FORMAT),
    "priority": ((0,), _TIERS),
    "id_slot": ((-1,), "leave it out; the prefix cache finds shared prompts by itself"),
    "cache_prompt": ((True,), 'use cache: "off"'),
    "n_predict": ((-1,), "use max_tokens"),
}


def refuse_unsupported(plain: dict[str, Any], *, known: frozenset[str] = frozenset()) -> None:
    """Check everything the client wrote; `known` are fields of the list that the route implements after all.

    Raises:
        ApiError: 400, with the parameter and what to use instead.
    """
    for name in plain.keys() & _PARAMETERS.keys():
        value = plain[name]
        neutral, hint = _PARAMETERS[name]
        # 0 == False in Python, but not in JSON.
        is_neutral = value is None or any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral)
        if not is_neutral and name not in known:
            raise ApiError(400, "unsupported_parameter", f"{name} = {describe(value)} is not supported.", param=name, hint=hint)
