"""From command line, environment and file to one checked `Settings`, with the origin of every value.

    flags (--port, --set)  >  environment (ULTRAFAST_SERVER__PORT)  >  file (--config)  >  default

Each source becomes a `Layer`: dotted key -> value and origin. Names are checked per layer, then the layers are laid over
each other and the result is validated once, so that an error can say whose value it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_settings import EnvSettingsSource

from ultrafast.config.checks import check_consistency
from ultrafast.config.keys import ENV_KEYS, NON_SETTING_ENV, SETTING_KEYS, TEST_ENV_PREFIX, nearest
from ultrafast.config.settings import ENV_PREFIX, Settings
from ultrafast.config.toml_file import flatten, read_toml
from ultrafast.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave, and where: `FILE line N`, `environment NAME`, `--flag`."""

    value: Any
    origin: str


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
        merged.update(layer)
    settings = _validate(merged)
    check_consistency(settings, {dotted: given.origin for dotted, given in merged.items()})
    origins = {dotted: merged[dotted].origin if dotted in merged else "default" for dotted in SETTING_KEYS}
    return LoadedSettings(settings, origins)


def read_file_layer(path: Path) -> Layer:
    """The values of a TOML file. Their types are taken literally: `port = "8080"` is an error, not a number."""
    file = read_toml(path)
    # Lists are tuples here: settings are immutable.
    values = {dotted: tuple(value) if isinstance(value, list) else value for dotted, value in file.values.items()}
    layer = {dotted: Given(value, file.where(dotted)) for dotted, value in values.items()}
    _refuse_unknown_keys(layer)
    for dotted, given in layer.items():
        kind: Any = SETTING_KEYS[dotted].field.annotation
        try:
            TypeAdapter(kind).validate_python(given.value, strict=True)
        except ValidationError as error:
            raise _value_error(dotted, given, error.errors()[0]["msg"]) from error
    return layer


def read_env_layer(environ: Mapping[str, str]) -> Layer:
    """The values of `ULTRAFAST_SECTION__KEY` variables; names are not case-sensitive.

    Raises:
        ConfigError: a variable with our prefix that is neither a setting nor otherwise known.
    """
    source = EnvSettingsSource(Settings, case_sensitive=False)
    given_names = {name.upper(): value for name, value in environ.items() if name.upper().startswith(ENV_PREFIX) and value}
    for name in given_names:
        if name not in ENV_KEYS and name not in NON_SETTING_ENV and not name.startswith(TEST_ENV_PREFIX):
            raise _unknown_env(name)
    source.env_vars = {name.lower(): value for name, value in given_names.items()}
    names = {key.dotted: key.env_name for key in ENV_KEYS.values()}
    return {dotted: Given(value, f"environment {names[dotted]}") for dotted, value in flatten(source()).items()}


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
            guess = nearest(dotted, list(SETTING_KEYS))
            raise ConfigError(
                f"{given.origin}: unknown setting {dotted}.",
                param=dotted,
                hint=f"Did you mean {guess}?" if guess else "`ultrafast config --show` lists all settings.",
            )


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
        dotted = ".".join(str(part) for part in first["loc"])
        raise _value_error(dotted, merged[dotted], first["msg"]) from error


def _value_error(dotted: str, given: Given, message: str) -> ConfigError:
    return ConfigError(
        f"{given.origin}: {dotted} = {given.value!r} is not valid: {message[0].lower()}{message[1:]}.",
        param=dotted,
        hint=f"{dotted} takes: {SETTING_KEYS[dotted].type_text}.",
    )
