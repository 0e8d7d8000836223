"""A value that somebody gave for a setting, and what is wrong with it in a person's words.

Every message says where the value stands, which setting it is, what it must be and what was given; the hint how to write it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ultrafast.config.keys import SETTING_KEYS, nearest
from ultrafast.core.errors import ConfigError

_MAX_SHOWN = 60
_ALL_SETTINGS = "`ultrafast config --show` lists all settings."


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody gave, and where: `FILE line N`, `environment NAME`, `--flag`.

    Attributes:
        is_typed: it comes from a file, which tells text from numbers; elsewhere everything is text.
    """

    value: Any
    origin: str
    is_typed: bool = False

    @property
    def shown(self) -> str:
        """The value as its writer wrote it, cut to a line."""
        text = _spelled(self.value)
        return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def value_error(dotted: str, given: Given, problem: str | None = None, *, is_type_wrong: bool = False) -> ConfigError:
    """Return the error for a value of the wrong type or out of range.

    Args:
        dotted: the setting.
        given: the value.
        problem: what it must be beside type and range.
        is_type_wrong: the value is of another type; for those from a file.
    """
    key = SETTING_KEYS[dotted]
    rest = f" ({problem})" if problem else ""
    kind = f", which is {_kind(given.value)}" if is_type_wrong else ""
    return ConfigError(
        f"{given.origin}: {dotted} must be {_with_article(key.type_text)}{rest}; got {given.shown}{kind}.",
        param=dotted,
        hint=_value_hint(dotted, given),
    )


def unknown_setting(dotted: str, given: Given) -> ConfigError:
    """Return the error for a name that is no setting."""
    inside = [known for known in SETTING_KEYS if known.startswith(f"{dotted}.")]
    if inside:
        message = f"{given.origin}: {dotted} is a section, not a setting; got {given.shown}."
        return ConfigError(message, param=dotted, hint=f"Set what is in it, for example {inside[0]}.")
    outer = dotted.rpartition(".")[0]
    if outer in SETTING_KEYS:
        wanted = _with_article(SETTING_KEYS[outer].type_text)
        message = f"{given.origin}: {outer} is a setting, not a section; it takes {wanted}."
        return ConfigError(message, param=outer, hint=_example(outer, given))
    guess = nearest(dotted, list(SETTING_KEYS))
    hint = f"Did you mean {guess}?" if guess else _ALL_SETTINGS
    return ConfigError(f"{given.origin}: unknown setting {dotted}.", param=dotted, hint=hint)


def _value_hint(dotted: str, given: Given) -> str:
    if given.is_typed and isinstance(given.value, str) and _is_plain(given.value):
        return f"Write it without quotes: {dotted} = {given.value.strip().lower()}"
    return _example(dotted, given)


def _is_plain(text: str) -> bool:
    """Whether the text of a value is one of another type."""
    try:
        return isinstance(json.loads(text.strip().lower()), bool | int | float)
    except ValueError:
        return False


def _example(dotted: str, given: Given) -> str:
    key = SETTING_KEYS[dotted]
    if key.default is None:
        return f"Leave {dotted} out for its default. {_ALL_SETTINGS}"
    default = list(key.default) if isinstance(key.default, tuple) else key.default
    if given.is_typed:
        return f"The default is {dotted} = {_spelled(default)}"
    text = default if isinstance(default, str) else _spelled(default)
    text = f"'{text}'" if " " in text or '"' in text else text
    if given.origin.startswith("environment "):
        return f"The default is {key.env_name}={text}"
    separator = "=" if given.origin.startswith("--set") else " "
    return f"The default is {given.origin}{separator}{text}"


def _spelled(value: Any) -> str:
    """As TOML and JSON write it."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_spelled(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    kinds = ((str, "text"), (int, "an integer"), (float, "a number"), (tuple | list, "a list"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "a date or time")


def _with_article(type_text: str) -> str:
    """`integer, at least 0` -> `an integer, at least 0`."""
    articles = (("integer", "an "), ("number", "a "), ("list", "a "))
    return next((article for word, article in articles if type_text.startswith(word)), "") + type_text
