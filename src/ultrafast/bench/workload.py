"""The plan of a run: every request with its moment, lengths, tier and text, made before anything is sent. Pure.

A session is a conversation; its turns follow each other, each with the answers so far. Single requests are sessions of one turn.
The same seed and calibration give the same plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from ultrafast.bench.arrivals import open_loop
from ultrafast.bench.lengths import parse_lengths
from ultrafast.bench.prompt_files import FilePrompt
from ultrafast.bench.tier_mix import assign_tiers
from ultrafast.bench.traces import TraceEntry
from ultrafast.bench.words import NONCE_WORDS, Calibration, random_text

SHAPES = {
    "short-short": ("128", "64"),
    "short-long": ("128", "512"),
    "long-short": ("2048", "64"),
    "long-long": ("2048", "512"),
    "chat": ("lognormal:256,0.8,4096", "lognormal:128,0.6,1024"),
}
"""Scenario -> lengths of prompt and output in tokens."""

_SHARED_KEY, _TEXT_KEY, _LENGTH_KEY, _TIER_KEY, _ARRIVAL_KEY = 1, 2, 3, 4, 5


class WorkloadSpec(msgspec.Struct, kw_only=True, frozen=True):
    """What to send, as the command line says it.

    Attributes:
        num_requests: all turns counted; the last session is cut to fit.
        arrival: poisson, gamma, constant, or closed (no schedule).
        num_shared_tokens: length of a prefix that all prompts share (then there is no nonce before it).
        is_cold: put a nonce at the start of each prompt.
        text_seed: of the texts alone; None: `seed`. Two runs with the same `seed` and different texts have the same arrivals and
            lengths, and no prompt of one is in a cache for the other.
    """

    num_requests: int
    input_len: str
    output_len: str
    arrival: str = "closed"
    rate_per_s: float = 1.0
    burstiness: float = 1.0
    num_turns: int = 1
    num_shared_tokens: int = 0
    tier_mix: dict[str, float] = {}
    is_cold: bool = True
    seed: int = 0
    text_seed: int | None = None

    @property
    def words_seed(self) -> int:
        """The seed that texts are made from."""
        return self.seed if self.text_seed is None else self.text_seed


class PlannedRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One request. `due_s` from the start of the window; None: as soon as a slot is free, or when the turn before it ends.

    `messages` are those that this turn adds. `num_prompt_tokens` is None where nobody asked for a length.
    """

    index: int
    session: int
    turn: int = 0
    due_s: float | None = None
    tier: str | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    messages: list[dict[str, Any]]
    prompt_id: str


class Session(msgspec.Struct, frozen=True):
    """The turns of one conversation, in order; at least one."""

    turns: list[PlannedRequest]


def plan_random(spec: WorkloadSpec, calibration: Calibration) -> list[Session]:
    """Random text of the wanted lengths."""
    prompt_draw, output_draw = parse_lengths(spec.input_len), parse_lengths(spec.output_len)
    generator = np.random.default_rng([spec.seed, _LENGTH_KEY])
    shared = (
        random_text(calibration.num_words(spec.num_shared_tokens), spec.words_seed, _SHARED_KEY) if spec.num_shared_tokens else ""
    )
    due, tiers = _due(spec), assign_tiers(spec.tier_mix, -(-spec.num_requests // spec.num_turns), spec.seed + _TIER_KEY)
    sessions: list[Session] = []
    for indices in _batched(range(spec.num_requests), spec.num_turns):
        number, due_s = len(sessions), next(due)
        turns = []
        for turn, index in enumerate(indices):
            num_prompt = prompt_draw(generator)
            text = _text(num_prompt, calibration, shared if turn == 0 else "", spec, index)
            # A later turn carries what came before it, so its length is not the workload's to choose.
            turns.append(
                PlannedRequest(
                    index=index,
                    session=number,
                    turn=turn,
                    due_s=due_s if turn == 0 else None,
                    tier=tiers[number],
                    num_prompt_tokens=num_prompt if turn == 0 else None,
                    num_output_tokens=output_draw(generator),
                    messages=[{"role": "user", "content": text}],
                    prompt_id=f"random-{spec.seed}-{index}",
                )
            )
        sessions.append(Session(turns))
    return sessions


def plan_prompts(spec: WorkloadSpec, prompts: Sequence[FilePrompt]) -> list[Session]:
    """The user's prompts, in order, over and over; a nonce before each unless the scenario is about caching."""
    output_draw = parse_lengths(spec.output_len)
    generator = np.random.default_rng([spec.seed, _LENGTH_KEY])
    due, tiers = _due(spec), assign_tiers(spec.tier_mix, spec.num_requests, spec.seed + _TIER_KEY)
    sessions = []
    for index in range(spec.num_requests):
        prompt = prompts[index % len(prompts)]
        request = PlannedRequest(
            index=index,
            session=index,
            due_s=next(due),
            tier=tiers[index],
            num_output_tokens=prompt.num_output_tokens or output_draw(generator),
            messages=_with_nonce(prompt.messages, spec, index),
            prompt_id=f"file-{index % len(prompts)}",
        )
        sessions.append(Session([request]))
    return sessions


def plan_trace(spec: WorkloadSpec, entries: Sequence[TraceEntry], calibration: Calibration) -> list[Session]:
    """Recorded traffic with random text of the recorded lengths; blocks with the same id get the same text."""
    chosen = entries[: spec.num_requests]
    tiers = assign_tiers(spec.tier_mix, len(chosen), spec.seed + _TIER_KEY)
    sessions = []
    for index, entry in enumerate(chosen):
        request = PlannedRequest(
            index=index,
            session=index,
            due_s=entry.due_s,
            tier=tiers[index] or entry.tier,
            num_prompt_tokens=entry.num_prompt_tokens,
            num_output_tokens=entry.num_output_tokens,
            messages=[{"role": "user", "content": _trace_text(entry, calibration, spec, index)}],
            prompt_id=f"trace-{index}",
        )
        sessions.append(Session([request]))
    return sessions


def planned_duration_s(sessions: Sequence[Session]) -> float | None:
    """Length of the schedule; None in closed loop, where the server sets the pace."""
    due = [session.turns[0].due_s for session in sessions if session.turns[0].due_s is not None]
    return max(due) if due else None


def _due(spec: WorkloadSpec) -> Iterator[float | None]:
    if spec.arrival == "closed":
        return itertools.repeat(None)
    return open_loop(spec.arrival, spec.rate_per_s, spec.burstiness, spec.seed + _ARRIVAL_KEY)


def _text(num_tokens: int, calibration: Calibration, shared: str, spec: WorkloadSpec, index: int) -> str:
    num_words = calibration.num_words(num_tokens)
    if shared:
        rest = max(1, num_words - shared.count(" ") - 1)
        return f"{shared} {random_text(rest, spec.words_seed, _TEXT_KEY, index)}"
    # Random words are their own nonce; what is drawn from the same seed again (a rerun) is what a warm cache would know.
    return random_text(num_words, spec.words_seed, _TEXT_KEY, index)


def _with_nonce(messages: Sequence[dict[str, Any]], spec: WorkloadSpec, index: int) -> list[dict[str, Any]]:
    first, *rest = messages
    if not spec.is_cold:
        return list(messages)
    nonce = f"[{random_text(NONCE_WORDS, spec.words_seed, _TEXT_KEY, index)}]\n"
    content = first.get("content") or ""
    parts = [{"type": "text", "text": nonce}, *content] if isinstance(content, list) else f"{nonce}{content}"
    return [{**first, "content": parts}, *rest]


def _trace_text(entry: TraceEntry, calibration: Calibration, spec: WorkloadSpec, index: int) -> str:
    num_words = calibration.num_words(entry.num_prompt_tokens)
    if not entry.blocks:
        return random_text(num_words, spec.words_seed, _TEXT_KEY, index)
    block_words = max(1, round(entry.num_block_tokens / calibration.tokens_per_word))
    words = " ".join(random_text(block_words, spec.words_seed, _SHARED_KEY, block) for block in entry.blocks).split(" ")
    padding = random_text(max(1, num_words - len(words)), spec.words_seed, _TEXT_KEY, index).split(" ")
    return " ".join([*words, *padding][:num_words])


def _batched(indices: range, size: int) -> Iterator[Sequence[int]]:
    return (indices[start : start + size] for start in range(0, len(indices), size))
