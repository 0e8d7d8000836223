"""The names of all settings, derived from the models: dotted keys, environment names, and the nearest known name."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ultrafast.config.settings import ENV_DELIMITER, ENV_PREFIX, Settings

NON_SETTING_ENV = {
    "ULTRAFAST_API_KEY": "An API key, in addition to those in `server.api_key_file`.",
    "ULTRAFAST_CACHE_DIR": "Folder for downloaded models instead of the user's cache folder.",
    "ULTRAFAST_LIBLLAMA": "Another libllama of the same build.",
    "ULTRAFAST_URL": "The server that `ultrafast chat` talks to.",
}
"""Environment variables with our prefix that are no settings, and what they do."""
TEST_ENV_PREFIX = "ULTRAFAST_TEST_"
"""Variables for our own tests; the server does not read them."""


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One setting. `dotted` is `section.key`, `field` what the model says about it."""

    dotted: str
    field: FieldInfo

    @property
    def env_name(self) -> str:
        return ENV_PREFIX + self.dotted.replace(".", ENV_DELIMITER).upper()

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=False)

    @property
    def type_text(self) -> str:
        """The type and range in a person's words, for example `integer, 0 to 65535`."""
        return _type_text(self.field.annotation) + _range_text(self.field)


def _walk(model: type[BaseModel], prefix: str) -> Iterator[SettingKey]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{prefix}{name}.")
        else:
            yield SettingKey(prefix + name, field)


SETTING_KEYS: dict[str, SettingKey] = {key.dotted: key for key in _walk(Settings, "")}
"""Every setting by its dotted name, in the order of the models."""
ENV_KEYS: dict[str, SettingKey] = {key.env_name: key for key in SETTING_KEYS.values()}
"""Every setting by the name of its environment variable."""


def nearest(name: str, known: list[str]) -> str | None:
    """The known name that looks most like `name`, or None. A like last part counts too: people forget sections."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return close[0]
    last = name.rpartition(".")[2]
    by_last = {candidate.rpartition(".")[2]: candidate for candidate in known}
    close = difflib.get_close_matches(last, list(by_last), n=1, cutoff=0.75)
    return by_last[close[0]] if close else None


def _type_text(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [arg for arg in get_args(annotation) if arg is not type(None)]
        return " or ".join(_type_text(arg) for arg in inner)
    if get_origin(annotation) is tuple:
        return "list of " + _type_text(get_args(annotation)[0]) + "s"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}[annotation]


def _range_text(field: FieldInfo) -> str:
    bounds = {name: getattr(item, name) for item in field.metadata for name in ("ge", "gt", "le") if hasattr(item, name)}
    text = ""
    if "ge" in bounds:
        text += f", at least {bounds['ge']}"
    if "gt" in bounds:
        text += f", more than {bounds['gt']}"
    if "le" in bounds:
        text += f", at most {bounds['le']}"
    return text
