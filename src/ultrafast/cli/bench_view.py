"""What a person sees while a measurement goes on: the plan, the warm-up, a bar with live percentiles. All on stderr."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from ultrafast.bench.progress import Progress
from ultrafast.bench.records import Run, WarmUp
from ultrafast.bench.runner import OnRecord
from ultrafast.bench.session import BenchSpec, Listener, measure
from ultrafast.bench.target import Target
from ultrafast.bench.wording import duration, milliseconds
from ultrafast.bench.workload import Session


async def measure_with_view(
    spec: BenchSpec, console: Console, on_record: OnRecord | None = None, stop: asyncio.Event | None = None
) -> Run:
    """`measure`, shown on `console`. The first Ctrl-C ends the run and keeps what was measured; the second one aborts.

    `on_record` hears of each finished request; setting `stop` does what the first Ctrl-C does.
    """
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[live]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    stop = stop or asyncio.Event()
    view = View(spec, console, bar)
    view.on_record = on_record
    with bar, _stop_on_interrupt(stop, console):
        return await measure(spec, view, stop)


class View(Listener):
    """Prints each phase as it comes."""

    def __init__(self, spec: BenchSpec, console: Console, bar: Bar) -> None:
        self._spec = spec
        self._console = console
        self._bar = bar
        self._task = bar.add_task("warm-up", total=None, live="")
        self.on_progress = self._show

    def on_target(self, target: Target) -> None:
        left_out = [
            name
            for name, is_sent in (
                ("token counts per chunk", target.dialect.has_running_usage),
                ("ignore_eos", target.dialect.ignores_eos),
            )
            if not is_sent
        ]
        note = f" (the server refuses: {', '.join(left_out)})" if left_out and self._spec.ignores_eos else ""
        self._console.print(f"server   {target.model} at {self._spec.url}{note}", highlight=False, soft_wrap=True)

    def on_plan(self, sessions: Sequence[Session], duration_s: float | None) -> None:
        self._console.print(f"plan     {describe_plan(self._spec, sessions, duration_s)}", highlight=False, soft_wrap=True)

    def on_warm_up(self, result: WarmUp) -> None:
        state = "steady" if result.is_steady else "not steady"
        text = f"{result.num_requests} requests in {duration(result.duration_s)}, {state}" if result.num_requests else "none"
        self._console.print(f"warm-up  {text} (not measured)", highlight=False)
        self._bar.update(self._task, description="measuring")

    def _show(self, progress: Progress) -> None:
        live = f"TTFT P50 {milliseconds(progress.ttft_p50_s)} P99 {milliseconds(progress.ttft_p99_s)} ms"
        live += f", TPOT P50 {milliseconds(progress.tpot_p50_s)} ms, {progress.num_in_flight} in flight"
        live += f", {progress.num_failed} failed" if progress.num_failed else ""
        self._bar.update(self._task, total=progress.num_planned, completed=progress.num_done, live=live)


def describe_plan(spec: BenchSpec, sessions: Sequence[Session], duration_s: float | None) -> str:
    """Number of requests, load, planned duration and seed in one line."""
    num_requests = sum(len(session.turns) for session in sessions)
    workload = spec.workload
    if duration_s is None:
        load = f"closed loop with {spec.concurrency or 1} at once; duration depends on the server"
    else:
        rate = "replayed" if spec.trace_path else f"{workload.arrival} arrivals at {workload.rate_per_s:g}/s"
        load = f"{rate}; planned duration {duration(duration_s)} plus the drain"
    limit = f", at most {duration(spec.max_duration_s)}" if spec.max_duration_s else ""
    return f"{num_requests} requests, {spec.name}, {load}{limit}; seed {workload.seed}"


@contextmanager
def _stop_on_interrupt(stop: asyncio.Event, console: Console) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        console.print("stopping: what was measured is kept; Ctrl-C again aborts")
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()

    remove: Callable[[], object] = lambda: loop.remove_signal_handler(signal.SIGINT)  # noqa: E731
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        remove()
