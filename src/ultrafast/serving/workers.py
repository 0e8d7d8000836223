"""Threads for work on prompts and schemas that would hold up the event loop; the most urgent tier goes first.

run(rank, work) --> [ rank 0 | 1 | 2 | 3 ] --> thread --> the caller
                      in order of arrival within each; a caller who has left is passed over
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """A pool of threads. `run` belongs to one event loop."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # for what follows
        self._jobs: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []

    async def run(self, rank: int, work: Callable[[], T]) -> T:
        """Return what `work` returns, done on a thread; it does not wait for work of a larger rank that has not begun."""
        done: Future[T] = Future()
        with self._lock:
            heapq.heappush(self._jobs, (rank, next(self._numbers), done, work))
        self._threads.submit(self._do_next)  # one for each job, though not that job
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """Wait for what has begun; the callers of the rest are cancelled."""
        with self._lock:
            jobs, self._jobs = self._jobs, []
        for _, _, done, _ in jobs:
            done.cancel()
        self._threads.shutdown(wait=True)

    def _do_next(self) -> None:
        with self._lock:
            if not self._jobs:
                return
            _, _, done, work = heapq.heappop(self._jobs)
        if not done.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - the caller's
            done.set_exception(error)
        else:
            done.set_result(result)
