"""Runs two configurations in turns, A B B A A B B A ..., so that slow drift of the machine hits both alike.

Both runs of a pair have the same seed for arrivals and lengths, and each run has texts of its own: what A left in a cache
must not help B.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from ultrafast.bench.records import Run
from ultrafast.bench.session import BenchSpec

Measure = Callable[[str, BenchSpec], Awaitable[Run]]


def order_of(pair: int) -> tuple[str, str]:
    """The sides of a pair in the order in which they run; pairs count from 0."""
    return ("a", "b") if pair % 2 == 0 else ("b", "a")


async def run_pairs(a: BenchSpec, b: BenchSpec, num_pairs: int, measure: Measure) -> tuple[list[Run], list[Run]]:
    """Measure both sides `num_pairs` times; `measure` is called with "a" or "b". Run i of each belongs to pair i.

    Raises:
        what `measure` raises, at the first run that cannot be made.
    """
    specs, done = {"a": a, "b": b}, {"a": list[Run](), "b": list[Run]()}
    for pair in range(num_pairs):
        for side in order_of(pair):
            done[side].append(await measure(side, _spec_of(specs[side], pair, side)))
    return done["a"], done["b"]


def _spec_of(spec: BenchSpec, pair: int, side: str) -> BenchSpec:
    seed = spec.workload.seed + pair
    text_seed = 2 * seed + (side == "b")  # all runs of a comparison differ in it
    return replace(spec, workload=msgspec.structs.replace(spec.workload, seed=seed, text_seed=text_seed))
