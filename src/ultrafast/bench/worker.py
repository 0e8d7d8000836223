"""One of several processes that carry out a plan together: `python -m ultrafast.bench.worker`.

Reads a job from stdin (one JSON line), says `ready`, reads the origin of the run's clock, and writes progress lines and at the
end its part of the run to stdout. The key of the server travels through stdin, never on a command line. SIGTERM ends the run
early, with a result; Ctrl-C is the parent's business.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import msgspec

from ultrafast.bench.client import BenchClient
from ultrafast.bench.event_loop import run_async
from ultrafast.bench.http1 import Address, ConnectionPool
from ultrafast.bench.progress import Progress
from ultrafast.bench.runner import PartialRun, Runner, RunnerSpec
from ultrafast.bench.workload import Session

READY = b"ready\n"


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """A worker's share of a run."""

    number: int
    url: str
    path: str
    headers: dict[str, str]
    timeout_s: float
    spec: RunnerSpec
    sessions: list[Session]


class Message(msgspec.Struct, omit_defaults=True):
    """A line from a worker: progress, or its result."""

    progress: Progress | None = None
    result: PartialRun | None = None


async def serve_job(job: Job, origin_ns: int) -> PartialRun:
    """Carry out a job in this process."""
    pool = ConnectionPool(Address.parse(job.url), time.perf_counter_ns)
    client = BenchClient(pool, job.path, origin_ns, job.timeout_s, job.headers)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        result = await Runner(client, job.spec, job.sessions, _tell).run(stop)
    finally:
        pool.close()
    for request in result.requests:
        request.worker = job.number
    return result


def _tell(progress: Progress) -> None:
    _write(Message(progress=progress))


def _write(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Entry point of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    origin = sys.stdin.buffer.readline().strip()
    if origin:
        _write(Message(result=run_async(serve_job(job, int(origin)))))


if __name__ == "__main__":
    main()
