"""What is switched: the optimisations, and the pipelines that are made of them. Pure.

    naive                nothing on
    warm-tokenizer, ...  one on by itself (with what it cannot do without)
    together             all on: the server as it is
    without-...          all but one

The naive pipeline is what people write first, not a straw man: the weights are loaded once and stay in memory, and the HTTP edge,
the template and libllama are the same as in all others. For each request it loads the tokenizer, tokenises and computes the whole
conversation, one request after the other in the order of arrival, and answers when all of the text is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ultrafast.core.errors import ConfigError

NAIVE, TOGETHER, WITHOUT = "naive", "together", "without-"


@dataclass(frozen=True, slots=True)
class Optimisation:
    """One switch.

    Attributes:
        title: what tables call it.
        off: settings of the server that switch it off.
        on: settings that switch it on; a setting that is only in `off` has then the user's own value, or its default.
        needs: optimisations without which it has nothing to work on.
        is_streaming: it is the client's: answers are streamed. No setting of the server.
        meaning: one sentence for the report.
    """

    name: str
    title: str
    meaning: str
    off: Mapping[str, Any] = field(default_factory=dict)
    on: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    is_streaming: bool = False


OPTIMISATIONS = (
    Optimisation(
        "warm-tokenizer",
        "warm tokenizer",
        "The tokenizer is loaded once. Off: libllama reads the vocabulary from the file for each request.",
        off={"tokenizer.is_reloaded": True},
        on={"tokenizer.is_reloaded": False},
    ),
    Optimisation(
        "segments",
        "segmented prompts",
        "Parts of a conversation that were tokenised before are not tokenised again. Off: all of the text, each turn.",
        off={"tokenizer.cache_bytes": 0},
    ),
    Optimisation(
        "prefix-reuse",
        "prefix reuse",
        "The KV of what was computed before stays on the device. Off: the whole prompt is computed, each turn.",
        off={"engine.enable_prefix_cache": False},
        on={"engine.enable_prefix_cache": True},
    ),
    Optimisation(
        "flash-attention",
        "flash attention",
        "Attention without the full matrix of scores in memory.",
        off={"engine.flash_attention": False},
        on={"engine.flash_attention": True},
    ),
    Optimisation(
        "streaming",
        "streaming",
        "Text is sent as it comes. Off: the answer is sent when it is complete, so the first text comes with the last.",
        is_streaming=True,
    ),
    Optimisation(
        "scheduler",
        "scheduler",
        "Requests share the steps of the model, the shortest prompts first. Off: one at a time, in the order of arrival.",
        off={"engine.max_num_running": 1},
    ),
    Optimisation(
        "kv-levels",
        "KV levels",
        "KV that has no place on the device goes to host memory and comes back. Off: it is lost. Works on prefix reuse.",
        off={"engine.kv_host_bytes": 0, "engine.kv_disk_bytes": 0},
        needs=("prefix-reuse",),
    ),
    Optimisation(
        "chunking",
        "chunking",
        "Prompts are computed in pieces sized by time, so that others go on writing. Off: up to 512 prompt tokens in a step, "
        "llama.cpp's default. Works on the scheduler.",
        off={"engine.max_step_tokens": 512, "engine.step_target_s": 10.0, "engine.enable_side_context": False},
        needs=("scheduler",),
    ),
)
_BY_NAME = {one.name: one for one in OPTIMISATIONS}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One row of the table.

    Attributes:
        on: names of the optimisations that are on.
        base: the pipeline that this one adds something to or takes something from; None for the naive one.
    """

    name: str
    title: str
    on: frozenset[str]
    base: str | None

    @property
    def is_streamed(self) -> bool:
        return any(_BY_NAME[name].is_streaming for name in self.on)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the server, by dotted name."""
        values: dict[str, Any] = {}
        for one in OPTIMISATIONS:
            values |= one.on if one.name in self.on else one.off
        return values


def make_pipelines(only: Sequence[str] = (), *, has_left_out: bool = False) -> list[Pipeline]:
    """All pipelines in the order of the table; the naive one is always the first.

    Args:
        only: names of the others that are wanted; empty: each optimisation alone, and together.
        has_left_out: also all but each one; without meaning beside `only`, which can name them.

    Raises:
        ConfigError: a name that is none.
    """
    everything = frozenset(_BY_NAME)
    alone = [_alone(one) for one in OPTIMISATIONS]
    together = Pipeline(TOGETHER, "all together", everything, NAIVE)
    left_out = [
        Pipeline(WITHOUT + one.name, f"all but {one.title}", everything - _dependants(one.name), TOGETHER)
        for one in OPTIMISATIONS
    ]
    naive = Pipeline(NAIVE, "naive", frozenset(), None)
    others = [*alone, together, *left_out]
    if unknown := [name for name in only if name not in {pipeline.name for pipeline in others}]:
        raise ConfigError(
            f"There is no pipeline {', '.join(unknown)}.", hint=f"There are: {', '.join(pipeline.name for pipeline in others)}."
        )
    if only:
        return [naive, *(pipeline for pipeline in others if pipeline.name in only)]
    return [naive, *alone, together, *(left_out if has_left_out else [])]


def _alone(one: Optimisation) -> Pipeline:
    beside = f" (with {', '.join(_BY_NAME[name].title for name in one.needs)})" if one.needs else ""
    return Pipeline(one.name, one.title + beside, frozenset({one.name, *one.needs}), one.needs[0] if one.needs else NAIVE)


def _dependants(name: str) -> frozenset[str]:
    return frozenset({name, *(one.name for one in OPTIMISATIONS if name in one.needs)})


def order_of(pipelines: Sequence[Pipeline], round_number: int) -> list[Pipeline]:
    """The order in a round: turned, and reversed in every other one, so that slow drift of the machine hits all alike."""
    start = round_number // 2 * 3 % len(pipelines)
    turned = [*pipelines[start:], *pipelines[:start]]
    return turned[::-1] if round_number % 2 else turned


def check_switches(values: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """Refuse settings that leave nothing to switch, before any server is started.

    Args:
        values: the user's effective settings, by dotted name.
        given: settings that were given on the command line -> the option that did it.

    Raises:
        ConfigError
    """
    for one in OPTIMISATIONS:
        for name in {*one.off, *one.on} & set(given):
            if name in one.on:
                raise ConfigError(f"{given[name]}: the ablation switches {name} itself ({one.title}).", hint="Leave it out.")
        own = {name: values[name] for name in one.off if name not in one.on}
        if own and all(own[name] == value for name, value in one.off.items()):
            names = ", ".join(f"{name} = {value}" for name, value in own.items())
            raise ConfigError(f"{one.title} cannot be switched on: the settings say {names}.", hint="Leave these settings out.")
