"""Spreads a plan over several worker processes and pools what they saw: raw records, never percentiles."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import msgspec

from ultrafast.bench.loop_lag import worst
from ultrafast.bench.progress import Progress
from ultrafast.bench.records import Window
from ultrafast.bench.runner import OnProgress, OnRecord, PartialRun
from ultrafast.bench.worker import READY, Job, Message
from ultrafast.core.errors import UltrafastError

_HEAD_START_NS = 200_000_000
_LINE_LIMIT_BYTES = 1 << 31


class WorkerError(UltrafastError):
    """A worker process died or said something unexpected."""

    code = "worker_failed"


async def run_jobs(
    jobs: Sequence[Job],
    on_progress: OnProgress | None,
    stop: asyncio.Event | None = None,
    on_record: OnRecord | None = None,
) -> PartialRun:
    """Start one process per job, begin all at the same moment, and pool their parts. Setting `stop` ends all early.

    `on_record` hears of each request that has ended, of jobs with `is_told_records`; the run has records of its own.

    Raises:
        WorkerError: a process ended without a result. The others are ended too.
    """
    processes = [await _start() for _ in jobs]
    seen: dict[int, Progress] = {}
    try:
        async with asyncio.TaskGroup() as group:
            ready = [group.create_task(_prepare(process, job)) for process, job in zip(processes, jobs, strict=True)]
        assert all(task.done() for task in ready)
        origin_ns = time.perf_counter_ns() + _HEAD_START_NS
        for process in processes:
            await _tell(process, b"%d\n" % origin_ns)
        async with asyncio.TaskGroup() as group:
            stopper = group.create_task(_end_early(processes, stop or asyncio.Event()))
            tasks = [
                group.create_task(_collect(process, number, seen, on_progress, on_record))
                for number, process in enumerate(processes)
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            stopper.cancel()
        return pool_parts([task.result() for task in tasks], is_open_loop=jobs[0].spec.is_open_loop)
    except* WorkerError as failures:
        raise failures.exceptions[0] from None
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def pool_parts(parts: Sequence[PartialRun], *, is_open_loop: bool) -> PartialRun:
    """One run out of its parts. Closed loop: the window ends when the first process had a free slot and nothing to put in it."""
    ends = [part.window.end_ns for part in parts]
    return PartialRun(
        requests=sorted((request for part in parts for request in part.requests), key=lambda request: request.index),
        window=Window(0, max(ends) if is_open_loop else min(ends)),
        loop_lag=worst([part.loop_lag for part in parts]),
        peak_in_flight=sum(part.peak_in_flight for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
        is_stopped=any(part.is_stopped for part in parts),
    )


async def _start() -> asyncio.subprocess.Process:
    arguments = [sys.executable, "-m", "ultrafast.bench.worker"]
    pipe = asyncio.subprocess.PIPE
    # A session of its own: Ctrl-C on the terminal is for the parent, which then asks its workers to stop.
    return await asyncio.create_subprocess_exec(
        *arguments, stdin=pipe, stdout=pipe, limit=_LINE_LIMIT_BYTES, start_new_session=True
    )


async def _prepare(process: asyncio.subprocess.Process, job: Job) -> None:
    assert process.stdout is not None, "started with a pipe"
    body = msgspec.json.encode(job)
    await _tell(process, b"%d\n%s" % (len(body), body))
    if await process.stdout.readline() != READY:
        raise WorkerError("A worker process did not start.", hint="Its own message stands above.")


async def _collect(
    process: asyncio.subprocess.Process,
    number: int,
    seen: dict[int, Progress],
    on_progress: OnProgress | None,
    on_record: OnRecord | None,
) -> PartialRun:
    assert process.stdout is not None, "started with a pipe"
    while line := await process.stdout.readline():
        message = msgspec.json.decode(line, type=Message)
        if message.result is not None:
            return message.result
        if message.record is not None and on_record is not None:
            on_record(message.record)
        if message.progress is not None and on_progress is not None:
            seen[number] = message.progress
            on_progress(_sum(list(seen.values())))
    raise WorkerError("A worker process ended without a result.", hint="Its own message stands above.")


async def _end_early(processes: Sequence[asyncio.subprocess.Process], stop: asyncio.Event) -> None:
    await stop.wait()
    for process in processes:
        if process.returncode is None:
            await _tell(process, b"stop\n")


async def _tell(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None, "started with a pipe"
    try:
        process.stdin.write(data)
        await process.stdin.drain()
    except OSError as error:
        raise WorkerError("A worker process has gone.", hint="Its own message stands above.") from error


def _sum(parts: Sequence[Progress]) -> Progress:
    """Counts add up; of percentiles the worst is shown, because percentiles cannot be pooled."""

    def most(values: list[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    return Progress(
        sum(part.num_planned for part in parts),
        sum(part.num_ok for part in parts),
        sum(part.num_failed for part in parts),
        sum(part.num_in_flight for part in parts),
        max(part.elapsed_s for part in parts),
        most([part.ttft_p50_s for part in parts]),
        most([part.ttft_p99_s for part in parts]),
        most([part.tpot_p50_s for part in parts]),
        sum(part.num_tokens for part in parts),
    )
