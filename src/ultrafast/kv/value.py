"""The value of a run outside the device: what is worth least is evicted first.

    value = P(reuse) * seconds of recomputation saved / bytes held

P(reuse) is estimated from how often the run was reused and how long ago: each further hit counts once more, each half-life
without use halves it. Seconds saved grow with the tokens, and with the position (a token attends to all before it).
"""

from __future__ import annotations

from ultrafast.kv.run import Run

HALF_LIFE_S = 600.0
ATTENTION_TOKENS = 16_384
"""Position at which attention costs as much as the rest of a token's computation: the order of magnitude for small models."""


def reuse_weight(run: Run, now: float) -> float:
    """Return a number in proportion to the probability that the run is reused."""
    age_s = max(0.0, now - run.last_used_s)
    return float((1 + run.num_hits) * 0.5 ** (age_s / HALF_LIFE_S))


def value_of(run: Run, now: float) -> float:
    """Return what a byte of this run is worth; comparable between runs of one model only."""
    work = len(run.tokens) * (1.0 + run.start / ATTENTION_TOKENS)
    return reuse_weight(run, now) * work / max(1, run.num_bytes)
