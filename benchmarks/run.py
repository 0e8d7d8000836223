"""Lists and runs the benchmarks.

python benchmarks/run.py --list             list them
python benchmarks/run.py                    run all of them
python benchmarks/run.py raw_loop soak      run these
python benchmarks/run.py --quick            a minute or so each: shows that they work, not what is true
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fingerprint import Neighbours, fingerprint, quiet_warnings  # noqa: E402
from benchmarks.options import Options  # noqa: E402
from benchmarks.report import Benchmark, write_json  # noqa: E402

RESULTS_DIR = ROOT / "benchmarks" / "results"
NAMES = (
    "vs_llama_server",
    "raw_loop",
    "api_overhead",
    "scheduler_steps",
    "dashboard_cost",
    "warm_first",
    "crash_recovery",
    "kv_levels",
    "correctness",
    "speculation",
    "tier_isolation",
    "long_prompt_gaps",
    "overload",
    "kv_exhaustion",
    "soak",
)
EXIT_FAILED = 1


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # unwinds, and so stops the servers
    arguments = _parse()
    if arguments.list:
        return _list()
    benchmarks = [_load(name) for name in arguments.names or NAMES]
    options = _options(arguments)
    total_s = sum(benchmark.planned_s(options.is_quick) for benchmark in benchmarks)
    print(f"{len(benchmarks)} benchmark(s), about {total_s / 60:.1f} minutes{' (quick)' if options.is_quick else ''}\n")
    failed = [benchmark.name for benchmark in benchmarks if not _run(benchmark, options)]
    if failed:
        print(f"could not be measured: {', '.join(failed)}")
    return EXIT_FAILED if failed else 0


def _run(benchmark: Benchmark, options: Options) -> bool:
    """Run and report one benchmark; False when it broke (a missed goal is a result)."""
    neighbours = Neighbours()
    time.sleep(1.0)
    found = {**fingerprint(options), "others_cores_before": neighbours.cores()}
    print(f"== {benchmark.name}: {benchmark.title}")
    print(f"   about {benchmark.planned_s(options.is_quick):.0f} s; {found['cpu']}, {found['num_cores']} cores", flush=True)
    for warning in quiet_warnings(found["others_cores_before"]):
        print(f"   {warning}", flush=True)
    neighbours = Neighbours()
    begin_s = time.monotonic()
    try:
        report = benchmark.run(options)
    except Exception as error:  # the boundary: one broken benchmark must not hide the results of the others
        print(f"   FAILED after {time.monotonic() - begin_s:.0f} s: {type(error).__name__}: {error}\n", flush=True)
        if os.environ.get("BENCH_TRACEBACK"):
            raise
        return False
    found["others_cores"] = neighbours.cores()
    report.notes += quiet_warnings(found["others_cores"])
    head: dict[str, Any] = {"benchmark": benchmark.name, "title": benchmark.title, "duration_s": time.monotonic() - begin_s}
    stamp = datetime.now(tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    path = RESULTS_DIR / f"{benchmark.name}-{stamp}{'-quick' if options.is_quick else ''}.json"
    write_json(path, report, {**head, "environment": found})
    print(report.to_text())
    print(f"   {head['duration_s']:.0f} s; {path.relative_to(ROOT)}\n", flush=True)
    return True


def _list() -> int:
    for name in NAMES:
        benchmark = _load(name)
        print(f"{name:18} {benchmark.planned_s(False):5.0f} s   {benchmark.title}")
    return 0


def _load(name: str) -> Benchmark:
    if name not in NAMES:
        raise SystemExit(f"error: there is no benchmark {name!r}\nhint: one of {', '.join(NAMES)}")
    found = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    assert isinstance(found, Benchmark)
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="name them, with duration and claim, and stop")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--model", metavar="PATH|NAME", help="model file or name (default: the bundled model)")
    parser.add_argument("--draft-model", metavar="PATH|NAME", help="draft model for `speculation` (default: none)")
    parser.add_argument("--threads", type=int, default=0, help="threads of the forward pass (default: all usable cores)")
    parser.add_argument("--context", type=int, default=8192, help="KV pool in tokens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of prompts and random moments (default: new for every run)")
    parser.add_argument("--vllm-python", type=Path, metavar="PATH", help="Python of an environment with vLLM, as a further peer")
    parser.add_argument("--vllm-model", type=Path, metavar="DIR", help="the same model as a checkpoint for it")
    return parser.parse_args()


def _options(arguments: argparse.Namespace) -> Options:
    from ultrafast.engine.llama.machine import usable_cores
    from ultrafast.models.resolve import locate_model

    return Options(
        is_quick=arguments.quick,
        model_path=locate_model(arguments.model).absolute(),
        num_threads=arguments.threads or usable_cores(),
        context_tokens=arguments.context,
        seed=arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4)),
        log_dir=RESULTS_DIR / "logs",
        vllm_python=arguments.vllm_python,
        vllm_model=arguments.vllm_model,
        draft_model_path=locate_model(arguments.draft_model).absolute() if arguments.draft_model else None,
    )


if __name__ == "__main__":
    sys.exit(main())
