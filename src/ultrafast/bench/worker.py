"""One of several processes that carry out a plan together: `python -m ultrafast.bench.worker`.

    stdin:   size of the job, a line break, the job as JSON; then the origin of the run's clock and a line break
    stdout:  `ready`; progress lines; a line with its part of the run

Anything more on stdin, or its end, ends the run early, with a result: so a worker also stops when its parent dies. The key of the
server travels through stdin, never on a command line.
"""

from __future__ import annotations

import asyncio
import os
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
_STDIN = 0


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
    """Carry out a job in this process; stdin that becomes readable ends it early."""
    pool = ConnectionPool(Address.parse(job.url), time.perf_counter_ns)
    client = BenchClient(pool, job.path, origin_ns, job.timeout_s, job.headers)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(_STDIN, stop.set)
    try:
        result = await Runner(client, job.spec, job.sessions, _tell).run(stop)
    finally:
        loop.remove_reader(_STDIN)
        pool.close()
    for request in result.requests:
        request.worker = job.number
    return result


def _tell(progress: Progress) -> None:
    _write(Message(progress=progress))


def _write(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _read_line() -> bytes:
    """Byte by byte: what follows the line must stay in the pipe, for `add_reader` to see."""
    line = b""
    while (byte := os.read(_STDIN, 1)) not in (b"", b"\n"):
        line += byte
    return line


def _read_exactly(size: int) -> bytes:
    pieces = []
    while size and (piece := os.read(_STDIN, min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def main() -> None:
    """Entry point of a worker process."""
    job = msgspec.json.decode(_read_exactly(int(_read_line())), type=Job)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    origin = _read_line()
    if origin:
        _write(Message(result=run_async(serve_job(job, int(origin)))))


if __name__ == "__main__":
    main()
