"""How true are the figures of `ultrafast bench`? Measures a scripted server that knows when it really wrote each chunk.

    python -m benchmarks.truth_table
    python -m benchmarks.truth_table --streams 64 --processes 1

First table: one row per kind of stream; a figure with `?` is one that the bench itself marks as unreliable.

Second table: many paced streams at once. Server and client read the same clock, so each chunk has a delivery: its stamp at the
client less the moment that the server wrote it, counted from the fastest delivery of the run. That is the error of every figure
that ends at the chunk; the server's own pacing does not enter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.component.bench.truth_server import token_s

from ultrafast.bench.event_loop import run_async
from ultrafast.bench.figures import figures_of
from ultrafast.bench.metrics import summarise
from ultrafast.bench.records import Run
from ultrafast.bench.session import BenchSpec, measure
from ultrafast.bench.stats.gaps import pooled_jitter
from ultrafast.bench.stats.percentiles import nearest_rank
from ultrafast.bench.validity import touched
from ultrafast.bench.workload import WorkloadSpec

NUM_TOKENS = 20
VARIANTS = (
    ("truth", "one token per chunk"),
    ("truth-2tok", "two tokens per chunk, not counted"),
    ("truth-2tok-counted", "two tokens per chunk, counted"),
    ("truth-reasoning", "first half is reasoning"),
    ("truth-nousage", "no usage"),
    ("truth-buffered", "buffered: all in one burst"),
    ("truth-coalesced", "coalesced: a few chunks per write"),
)


@contextmanager
def truth_server() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.component.bench.truth_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


def run(url: str, model: str, concurrency: int, num_requests: int, num_tokens: int, num_processes: int = 1) -> Run:
    workload = WorkloadSpec(num_requests=num_requests, input_len="50", output_len=str(num_tokens))
    spec = BenchSpec(
        name="truth", url=url, model=model, workload=workload, concurrency=concurrency, num_warmups=4, num_processes=num_processes
    )
    return run_async(measure(spec))


def true_row(per_chunk: int) -> list[str]:
    """What a perfect client would say of a stream with so many tokens per chunk."""
    stamps = [token_s(number + per_chunk - 1, per_chunk) for number in range(0, NUM_TOKENS, per_chunk)]
    gaps = [b - a for a, b in itertools.pairwise(stamps)]
    jitter = pooled_jitter([gaps]) or math.nan
    tpot = (stamps[-1] - stamps[0]) / (NUM_TOKENS - per_chunk)
    return [f"{value * 1e3:.1f}" for value in (stamps[0], tpot, tpot, jitter)]


def kinds_of_streams(url: str) -> None:
    print(f"{'stream':36}{'TTFT':>9}{'TPOT':>9}{'ITL':>9}{'jitter':>9}   flags")
    print(f"{'true, one token per chunk':36}" + "".join(f"{cell:>9}" for cell in true_row(1)))
    print(f"{'true, two tokens per chunk':36}" + "".join(f"{cell:>9}" for cell in true_row(2)))
    for model, text in VARIANTS:
        measured = run(url, model, 4, 40, NUM_TOKENS)
        overall, flags = summarise(measured).overall, measured.record.flags
        values = {
            "ttft": nearest_rank([figures_of(request).ttft_s or 0 for request in measured.requests], 0.5),
            "tpot": overall.metrics["tpot"].mean,
            "itl": overall.metrics["itl"].mean,
            "jitter": overall.jitter_s,
        }
        cells = [
            ("-" if value is None else f"{value * 1e3:.1f}") + ("?" if value is not None and touched(flags, name) else " ")
            for name, value in values.items()
        ]
        codes = ", ".join(flag.code for flag in flags if flag.level != "note")
        print(f"{text:36}" + "".join(f"{cell:>9}" for cell in cells) + f"   {codes}", flush=True)


def many_streams(url: str, num_streams: int, num_processes: int) -> None:
    measured = run(url, "truth", num_streams, num_streams * 4, 60, num_processes)
    with urllib.request.urlopen(f"{url}/truth") as answer:
        truth = json.load(answer)
    deliveries, first, gap_errors, late, begun = [], [], [], [], []
    for request in measured.requests:
        received, *written = truth[request.request_id]
        stamps = [chunk.stamp_ns for chunk in request.chunks]
        assert len(stamps) == len(written), f"{len(written)} chunks written, {len(stamps)} seen"
        delays = [(stamp - moment) / 1e9 for stamp, moment in zip(stamps, written, strict=True)]
        deliveries += delays
        first.append(delays[0])
        gap_errors += [abs(b - a) for a, b in itertools.pairwise(delays)]
        late += [(moment - received) / 1e9 - token_s(number) for number, moment in enumerate(written)]
        begun.append((received - (request.sent_ns or 0)) / 1e9)
    fastest = min(deliveries)
    rows = (
        ("TTFT error (ms)", [delay - fastest for delay in first]),
        ("delivery of any chunk (ms)", [delay - fastest for delay in deliveries]),
        ("gap error (ms)", gap_errors),
        ("server's own lateness (ms)", late),
        ("request waits at server (ms)", [wait - min(begun) for wait in begun]),
    )
    num_chunks = sum(len(request.chunks) for request in measured.requests)
    size = f"{len(measured.requests)} requests, {num_chunks} chunks, {num_processes} client process(es)"
    print(f"\n{num_streams} streams at once, {size}")
    for name, values in rows:
        shown = ", ".join(f"P{q * 100:g} {(nearest_rank(values, q) or 0) * 1e3:.2f}" for q in (0.5, 0.95, 0.99, 1.0))
        print(f"  {name:30}{shown}")
    lag = measured.record.loop_lag
    print(f"  {'client loop lag (ms)':30}P50 {lag.p50_s * 1e3:.2f}, P99 {lag.p99_s * 1e3:.2f}, longest {lag.max_s * 1e3:.2f}")
    print(f"  {'client CPU per chunk (us)':30}{measured.record.cpu_s / num_chunks * 1e6:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only-streams", action="store_true")
    arguments = parser.parse_args()
    with truth_server() as url:
        if not arguments.only_streams:
            kinds_of_streams(url)
        many_streams(url, arguments.streams, arguments.processes)


if __name__ == "__main__":
    main()
