"""From command line, environment and file to one checked `Settings`, with the origin of every value.

    flags (--port, --set)  >  environment (ULTRAFAST_SERVER__PORT)  >  file (--config)  >  default

Each source becomes a `Layer`: dotted key -> value and origin. Names are checked per layer, then the layers are laid over
each other and the result is validated once, so that an error can say whose value it is about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ultrafast.config.checks import check_consistency
from ultrafast.config.given import Given, unknown_setting, value_error
from ultrafast.config.keys import ENV_KEYS, NON_SETTING_ENV, SETTING_KEYS, TEST_ENV_PREFIX, nearest
from ultrafast.config.settings import ENV_PREFIX, Settings
from ultrafast.config.toml_file import read_toml
from ultrafast.core.errors import ConfigError

Layer = dict[str, Given]


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Checked settings and, for every dotted key, where its value came from ("default" included)."""

    settings: Settings
    origins: dict[str, str]

    def is_given(self, dotted: str) -> bool:
        """True when a person set the value, False when it is the default."""
        return self.origins[dotted] != "default"


def load_settings(environ: Mapping[str, str], config_file: Path | None = None, flags: Layer | None = None) -> LoadedSettings:
    """Read, lay over each other and check all sources.

    Args:
        environ: the process environment. Variables with an empty value count as not set.
        config_file: TOML file, or None.
        flags: values from the command line by dotted key.

    Raises:
        ConfigError: an unknown key, a value of the wrong type or out of range, or values that contradict each other.
    """
    merged: Layer = {}
    file_layer = read_file_layer(config_file) if config_file else {}
    for layer in (file_layer, read_env_layer(environ), flags or {}):
        _refuse_unknown_keys(layer)
        merged.update({dotted: _read_text(dotted, given) for dotted, given in layer.items()})
    settings = _validate(merged)
    check_consistency(settings, {dotted: given.origin for dotted, given in merged.items()})
    origins = {dotted: merged[dotted].origin if dotted in merged else "default" for dotted in SETTING_KEYS}
    return LoadedSettings(settings, origins)


def read_file_layer(path: Path) -> Layer:
    """The values of a TOML file. Their types are taken literally: `port = "8080"` is an error, not a number."""
    file = read_toml(path)
    # Lists are tuples here: settings are immutable.
    values = {dotted: tuple(value) if isinstance(value, list) else value for dotted, value in file.values.items()}
    layer = {dotted: Given(value, file.where(dotted), is_typed=True) for dotted, value in values.items()}
    _refuse_unknown_keys(layer)
    for dotted, given in layer.items():
        kind: Any = SETTING_KEYS[dotted].field.annotation
        try:
            TypeAdapter(kind).validate_python(given.value, strict=True)
        except ValidationError as error:
            is_type_wrong = error.errors()[0]["type"] != "literal_error"
            raise value_error(dotted, given, is_type_wrong=is_type_wrong) from error
    return layer


def read_env_layer(environ: Mapping[str, str]) -> Layer:
    """The values of `ULTRAFAST_SECTION__KEY` variables; names are not case-sensitive.

    Raises:
        ConfigError: a variable with our prefix that is neither a setting nor otherwise known.
    """
    given_names = {name.upper(): value for name, value in environ.items() if name.upper().startswith(ENV_PREFIX) and value}
    for name in given_names:
        if name not in ENV_KEYS and name not in NON_SETTING_ENV and not name.startswith(TEST_ENV_PREFIX):
            raise _unknown_env(name)
    return {ENV_KEYS[name].dotted: Given(value, f"environment {name}") for name, value in given_names.items() if name in ENV_KEYS}


def _unknown_env(name: str) -> ConfigError:
    guess = nearest(name, [*ENV_KEYS, *NON_SETTING_ENV])
    return ConfigError(
        f"Unknown environment variable {name}.",
        param=name,
        hint=f"Did you mean {guess}?" if guess else "`ultrafast config --show` lists all settings.",
    )


def _refuse_unknown_keys(layer: Layer) -> None:
    for dotted, given in layer.items():
        if dotted not in SETTING_KEYS:
            raise unknown_setting(dotted, given)


def _read_text(dotted: str, given: Given) -> Given:
    """Read what was given as text and is none: a list is written as JSON, a number as everywhere but in Python (`1_000`)."""
    annotation = SETTING_KEYS[dotted].field.annotation
    if not isinstance(given.value, str):
        return given
    kinds = get_args(annotation) or (annotation,)
    if "_" in given.value and str not in kinds and (int in kinds or float in kinds):
        raise value_error(dotted, given, "in digits only")
    if get_origin(annotation) is not tuple:
        return given
    try:
        items = json.loads(given.value)
    except ValueError:
        items = None
    if not isinstance(items, list):
        raise value_error(dotted, given, 'written as JSON: ["...", "..."]')
    return replace(given, value=tuple(items))


def _validate(merged: Layer) -> Settings:
    nested: dict[str, Any] = {}
    for dotted, given in merged.items():
        *tables, name = dotted.split(".")
        node = nested
        for table in tables:
            node = node.setdefault(table, {})
        node[name] = given.value
    try:
        return Settings(**nested)
    except ValidationError as error:
        first = error.errors()[0]
        # What stands behind the setting's own name is the place in its list.
        dotted = next(key for key in merged if first["loc"][: key.count(".") + 1] == tuple(key.split(".")))
        raise value_error(dotted, merged[dotted], _problem(first)) from error


def _problem(error: ErrorDetails) -> str | None:
    """What it must be beside the type and the range that the setting's own description names."""
    context = error.get("ctx", {})
    if error["type"] == "string_too_short":
        return f"at least {context['min_length']} character long"
    return "finite" if error["type"] == "finite_number" else None
