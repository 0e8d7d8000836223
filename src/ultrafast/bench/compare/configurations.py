"""Two configurations of our own server: what differs between them, what that may change, and what it must not. Pure.

The settings that differ are what the comparison is about. Everything else that the servers have must be the same, also what they
choose for themselves: a KV pool that is smaller because the other server took the memory would be measured as if it
were the setting's doing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ultrafast.bench.compare.conditions import ConditionsDifferError, Mismatch
from ultrafast.bench.own_server import ReadyLine
from ultrafast.core.errors import ConfigError

_MAX_SHOWN = 80
_CONSEQUENCES = {
    "model.path_or_name": ("model", "prompt_tokens", "output_tokens"),
    "model.served_name": ("model",),
    "model.chat_template_file": ("prompt_tokens", "output_tokens"),
    "sampling.temperature": ("output_tokens",),
    "sampling.top_k": ("output_tokens",),
    "sampling.top_p": ("output_tokens",),
    "sampling.min_p": ("output_tokens",),
    "sampling.repeat_penalty": ("output_tokens",),
}
"""Setting -> conditions of a measurement that it may change; those of `conditions.ALL_KEYS`."""
_CAUSES = {
    "kv_capacity_tokens": (
        "model.path_or_name",
        "engine.kv_capacity_tokens",
        "engine.max_request_tokens",
        "engine.max_num_running",
        "engine.kv_type_k",
        "engine.kv_type_v",
        "engine.flash_attention",
        "engine.swa_full",
        "engine.num_gpu_layers",
        "engine.deterministic",
        "engine.draft_model_path",
        "engine.libllama_path",
    ),
    "num_threads": ("engine.num_threads",),
    "flash_attention": ("model.path_or_name", "engine.flash_attention", "engine.num_gpu_layers", "engine.libllama_path"),
    "libllama": ("engine.libllama_path",),
}
"""What a server says of itself when it is ready -> settings that may be why it differs."""
_WRITTEN = {"request_log.path": "the request log", "engine.kv_disk_path": "KV on disk"}
"""Setting -> what a server alone may write there."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One side: what its server is started with.

    Attributes:
        words: what was written for this side alone, as `ultrafast serve` takes it.
        config_file, settings: as `own_server.start_server` takes them, those for both sides included.
        effective: the value of every setting by its dotted name.
        headers: what a request needs, such as a key; not printed.
    """

    words: tuple[str, ...]
    config_file: Path | None
    settings: Mapping[str, str]
    effective: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def command(self) -> str:
        """How somebody would start this server, without what both sides have."""
        return " ".join(("ultrafast serve", *self.words))


def differing_settings(a: Configuration, b: Configuration) -> tuple[Mismatch, ...]:
    """Every setting whose value differs, whether it was written on a command line, in a file, or is a default."""
    pairs = [(name, value, b.effective[name]) for name, value in a.effective.items()]
    return tuple(Mismatch(name, _text(first), _text(second)) for name, first, second in pairs if first != second)


def consequences(settings: Sequence[Mismatch]) -> list[str]:
    """Conditions that may differ because these settings do."""
    return [key for mismatch in settings for key in _CONSEQUENCES.get(mismatch.key, ())]


def check_apart(a: Configuration, b: Configuration) -> None:
    """Make sure that both servers can run at the same time without writing into the same place.

    Raises:
        ConfigError: names the setting.
    """
    for name, what in _WRITTEN.items():
        if a.effective[name] != b.effective[name] or not (_is_written(a, name) and _is_written(b, name)):
            continue
        place = a.effective[name] or "the default folder"
        raise ConfigError(
            f"Both servers would write {what} to {place}.",
            param=name,
            hint=f"Give each side a place of its own (--set-a {name}=..., --set-b {name}=...), or run one at a time: --restart.",
        )


def check_alike(a: ReadyLine, b: ReadyLine, settings: Sequence[Mismatch]) -> None:
    """Make sure that the servers differ only in what the settings that differ explain.

    Raises:
        ConditionsDifferError: names what differs although no setting says so.
    """
    names = {mismatch.key for mismatch in settings}
    first, second = msgspec.structs.asdict(a), msgspec.structs.asdict(b)
    found = [Mismatch(fact, str(first[fact]), str(second[fact])) for fact in _CAUSES if first[fact] != second[fact]]
    if unexplained := [mismatch for mismatch in found if names.isdisjoint(_CAUSES[mismatch.key])]:
        raise ConditionsDifferError(
            f"The servers differ in what no setting explains: {'; '.join(map(str, unexplained))}.",
            hint="Sizes are chosen by the free memory: use --restart, or fix them with --set engine.kv_capacity_tokens=N.",
        )


def _is_written(side: Configuration, name: str) -> bool:
    if name == "engine.kv_disk_path":
        return bool(side.effective["engine.kv_disk_bytes"])
    return side.effective[name] is not None


def _text(value: object) -> str:
    text = "none" if value in (None, "", ()) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
