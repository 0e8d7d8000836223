"""The settings as tables: what `docs/configuration.md` must contain, and what `ultrafast config --show` prints."""

from __future__ import annotations

from typing import Any

from ultrafast.config.keys import SETTING_KEYS, SettingKey
from ultrafast.config.load import LoadedSettings


def markdown_table(section: str) -> str:
    """The Markdown table of one section (`server`, `engine`, ...)."""
    rows = ["| setting | default | takes | meaning |", "|---|---|---|---|"]
    rows += [_row(key) for key in SETTING_KEYS.values() if key.dotted.split(".")[0] == section]
    return "\n".join(rows) + "\n"


def sections() -> list[str]:
    """Names of all sections in their order."""
    return list(dict.fromkeys(dotted.split(".")[0] for dotted in SETTING_KEYS))


def effective(loaded: LoadedSettings) -> list[tuple[str, Any, str]]:
    """(dotted key, value, origin) of every setting."""
    return [(dotted, _value_at(loaded, dotted), loaded.origins[dotted]) for dotted in SETTING_KEYS]


def _value_at(loaded: LoadedSettings, dotted: str) -> Any:
    value: Any = loaded.settings
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def _row(key: SettingKey) -> str:
    return f"| `{key.dotted}` | {default_text(key.default)} | {key.type_text} | {key.field.description} |"


def default_text(value: Any) -> str:
    """A default as TOML would write it."""
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if not isinstance(value, str) else f'`"{value}"`'
