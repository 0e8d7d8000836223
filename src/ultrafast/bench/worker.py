"""One of several processes that carry out a plan together: `python -m ultrafast.bench.worker`.

    stdin:   size of the job, a line break, the job as JSON; then the origin of the run's clock and a line break
    stdout:  `ready`; lines with progress and, if the job asks for them, requests that have ended; a line with its part of the run

Anything more on stdin, or its end, ends the run early, with a result: so a worker also stops when its parent dies. The key of the
server travels through stdin, never on a command line.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import cast

import msgspec

from ultrafast.bench.client import BenchClient
from ultrafast.bench.event_loop import run_async
from ultrafast.bench.http1 import Address, ConnectionPool
from ultrafast.bench.progress import Progress
from ultrafast.bench.records import RequestRecord
from ultrafast.bench.runner import PartialRun, Runner, RunnerSpec
from ultrafast.bench.trust import tls_context
from ultrafast.bench.workload import Session

READY = b"ready\n"
_STDIN = 0


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """A worker's share of a run. `is_told_records`: each request is to be told as soon as it has ended, not only at the end."""

    number: int
    url: str
    path: str
    headers: dict[str, str]
    timeout_s: float
    spec: RunnerSpec
    sessions: list[Session]
    ca_file: str | None = None
    is_insecure: bool = False
    is_told_records: bool = False


class Message(msgspec.Struct, omit_defaults=True):
    """A line from a worker: progress, a request that has ended, or its result."""

    progress: Progress | None = None
    record: RequestRecord | None = None
    result: PartialRun | None = None


class _Teller(asyncio.Protocol):
    """Writes messages to stdout and never waits for the reader: a full pipe must not stop the clock of the measurement."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._transport: asyncio.WriteTransport | None = None
        self._is_gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has no such base class

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a Protocol
        self._is_gone.set()

    def tell_progress(self, progress: Progress) -> None:
        self._write(Message(progress=progress))

    def tell_record(self, record: RequestRecord) -> None:
        record.worker = self._number
        self._write(Message(record=record))

    async def tell_result(self, result: PartialRun) -> None:
        """The last message; returns when all have been read, or the reader has gone."""
        for request in result.requests:
            request.worker = self._number
        self._write(Message(result=result))
        assert self._transport is not None, "connected first"
        self._transport.close()
        await self._is_gone.wait()

    def _write(self, message: Message) -> None:
        assert self._transport is not None, "connected first"
        self._transport.write(msgspec.json.encode(message) + b"\n")


async def serve_job(job: Job, origin_ns: int) -> None:
    """Carry out a job in this process and tell what came of it; stdin that becomes readable ends it early."""
    trust = tls_context(Path(job.ca_file) if job.ca_file else None, is_insecure=job.is_insecure)
    pool = ConnectionPool(Address.parse(job.url), time.perf_counter_ns, trust)
    client = BenchClient(pool, job.path, origin_ns, job.timeout_s, job.headers)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    _, teller = await loop.connect_write_pipe(lambda: _Teller(job.number), sys.stdout)
    loop.add_reader(_STDIN, stop.set)
    on_record = teller.tell_record if job.is_told_records else None
    try:
        result = await Runner(client, job.spec, job.sessions, teller.tell_progress, on_record).run(stop)
    finally:
        loop.remove_reader(_STDIN)
        pool.close()
    await teller.tell_result(result)


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
        run_async(serve_job(job, int(origin)))


if __name__ == "__main__":
    main()
