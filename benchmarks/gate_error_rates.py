"""How often the latency gate is wrong, and how many requests it takes: repeated live gates on simulated servers with a known P99.

    python benchmarks/gate_error_rates.py [--repeats 500] [--requests 2000]

Every gate looks as `ultrafast gate` does and stops when it is certain. The target is the same in all rows of a server; the row
says how far its true P99 lies from it. Right at the target both "pass" and "not decided" are right; above it "pass" is wrong.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.gate.judge import Mode, Rules, judge
from ultrafast.bench.gate.samples import Sampled
from ultrafast.bench.gate.targets import Metric, make_target
from ultrafast.bench.gate.verdicts import Verdict
from ultrafast.bench.gate.watch import FIRST_LOOK, LOOK_GROWTH

Server = Callable[[np.random.Generator, int], NDArray[np.float64]]
FACTORS = (0.7, 1 / 1.2, 1.0, 1.005, 1.2, 1.5)


def steady(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    return rng.lognormal(-2.3, 0.3, size)


def heavy(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    return rng.lognormal(-2.3, 0.8, size)


def bursty(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """One request in 40 begins a stretch of 8 that is half as slow again."""
    values = rng.lognormal(-2.3, 0.2, size)
    for start in np.flatnonzero(rng.random(size) < 1 / 40):
        values[start : start + 8] *= 1.5
    return values


def gate_once(ttfts_s: NDArray[np.float64], limit_s: float) -> tuple[Verdict, int]:
    target, values = make_target(Metric.TTFT, 99, limit_s), list(ttfts_s.reshape(-1, 1))
    size, look = FIRST_LOOK, 1
    while size <= len(values):
        verdict = judge(target, Sampled(values[:size]), Rules(mode=Mode.SEQUENTIAL, look=look, has_bounds=False)).verdict
        if verdict is not Verdict.INCONCLUSIVE:
            return verdict, size
        size, look = int(size * LOOK_GROWTH), look + 1
    return Verdict.INCONCLUSIVE, len(values)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--requests", type=int, default=2000)
    arguments = parser.parse_args()
    print("server   true P99 / target   pass    fail    open   median requests   fail twice in a row")
    servers: dict[str, Server] = {"steady": steady, "heavy": heavy, "bursty": bursty}
    for name, server in servers.items():
        rng = np.random.default_rng(1)
        p99_s = float(np.quantile(server(rng, 2_000_000), 0.99))
        for factor in FACTORS:
            found = [gate_once(server(rng, arguments.requests) * factor, p99_s) for _ in range(arguments.repeats)]
            counts = Counter(verdict for verdict, _ in found)
            shares = [counts[each] / len(found) for each in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE)]
            twice = sum(one is two is Verdict.FAIL for (one, _), (two, _) in itertools.pairwise(found))
            median = int(np.median([size for _, size in found]))
            print(f"{name:8} {factor:17.3f}   {shares[0]:5.1%}  {shares[1]:6.1%}  {shares[2]:6.1%}   {median:15}   {twice:19}")


if __name__ == "__main__":
    main()
