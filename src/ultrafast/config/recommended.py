"""Sampling defaults that a model's author recommends inside the model file.

Source of the keys: llama.cpp b11549, `llama-arch.cpp`, `LLM_KV_GENERAL_SAMPLING_*`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pydantic import ValidationError

from ultrafast.config.settings import SamplingSettings

_METADATA_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repeat_penalty": "general.sampling.penalty_repeat",
}
_log = logging.getLogger("ultrafast.config")


def with_recommendations(sampling: SamplingSettings, metadata: Mapping[str, str]) -> SamplingSettings:
    """Replace defaults by what the model file recommends; what a person set stays.

    A recommendation outside the setting's range is left out, and the log says so.
    """
    values = {name: getattr(sampling, name) for name in sampling.model_fields_set}
    for name, key in _METADATA_KEYS.items():
        if name in values or key not in metadata:
            continue
        try:
            SamplingSettings.model_validate({name: metadata[key]})
        except ValidationError:
            _log.warning("the model file recommends %s = %s, which is not usable", key, metadata[key])
            continue
        values[name] = metadata[key]
    return SamplingSettings.model_validate(values)
