"""Compiles the grammars of requests before they reach the scheduler, on a thread of its own: a large one takes up to a second.

    submit --> [ ultrafast | priority | default | flex ] --> prepare --> on_done --> take --> the scheduler
                 each bounded, and left after its TTL        (thread)

The most urgent tier goes first, in order of arrival within it: nobody waits for less urgent grammars that have not begun. Who
leaves or waited too long is not compiled any more.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from ultrafast.core.clock import Clock
from ultrafast.core.errors import EngineFailedError, InvalidRequestError, UltrafastError
from ultrafast.core.events import DropReason
from ultrafast.core.request import Request
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy
from ultrafast.sched.drain import MAX_RETRY_S, MIN_RETRY_S, evenly_spread

_log = logging.getLogger("ultrafast.engine")

_SPREAD = 0.5
"""Refused clients are told a wait that is up to this share longer, so that they do not return as a herd."""
_MEAN_KEEP = 0.9
_NUM_SPARE = 16


@dataclass(frozen=True, slots=True)
class CompileBounds:
    """How much may wait here: a tier's own queue, and `num_places` that may run at once, for which no queue is needed.

    `order` and `policies` are the tiers, the most urgent first.
    """

    order: Sequence[ServiceTier] = tuple(ServiceTier)
    policies: Sequence[TierPolicy] = DEFAULT_POLICIES
    num_places: int = 32


class Compiled(NamedTuple):
    """A request whose grammar is ready, or the reason why it never will be."""

    request: Request
    error: UltrafastError | None


class _Pending:
    """A request that is here. In the heap by (rank, number); given up in there by `is_wanted`."""

    __slots__ = ("is_wanted", "number", "rank", "request")

    def __init__(self, request: Request, rank: int, number: int) -> None:
        self.request, self.rank, self.number = request, rank, number
        self.is_wanted = True

    def __lt__(self, other: _Pending) -> bool:
        return (self.rank, self.number) < (other.rank, other.number)


class GrammarCompiler:
    """See the module. All methods belong to the engine thread.

    Args:
        prepare: compiles a request's grammar, on the compiler's thread; raises InvalidRequestError when that cannot be done.
        on_done: told there of every request that `prepare` was called for.
    """

    def __init__(
        self, prepare: Callable[[Request], None], on_done: Callable[[Compiled], None], clock: Clock, bounds: CompileBounds
    ) -> None:
        self._prepare, self._on_done, self._clock = prepare, on_done, clock
        self._policies, self._num_places = bounds.policies, bounds.num_places
        self._ranks = {tier: rank for rank, tier in enumerate(bounds.order)}
        self._pending: dict[str, _Pending] = {}
        self._deadlines: list[tuple[float, int, str]] = []
        self._nums, self._num_tokens = [0] * len(bounds.order), [0] * len(bounds.order)
        self._num_refused = 0
        self._numbers = itertools.count()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._lock = threading.Lock()  # for what follows
        self._waiting: list[_Pending] = []
        self._num_unwanted = 0
        self._is_working = False
        self._compile_s = 0.0

    def why_full(self, request: Request) -> DropReason | None:
        """Why there is no room for one more of its tier; None = there is. Who was admitted before always has room."""
        rank = self._ranks[request.tier]
        policy = self._policies[rank]
        if request.is_admitted:
            return None
        if self._nums[rank] >= policy.max_num_waiting + self._num_places:
            return DropReason.QUEUE_FULL
        num_tokens = self._num_tokens[rank] + request.num_prompt_tokens
        if policy.max_waiting_tokens and self._nums[rank] >= self._num_places and num_tokens > policy.max_waiting_tokens:
            return DropReason.QUEUE_TOKENS_FULL
        return None

    def submit(self, request: Request) -> None:
        """Compile in its turn; `on_done` tells."""
        pending = _Pending(request, self._ranks[request.tier], next(self._numbers))
        self._pending[request.request_id] = pending
        self._nums[pending.rank] += 1
        self._num_tokens[pending.rank] += request.num_prompt_tokens
        deadline_s = request.queue_deadline_s(self._policies[pending.rank].queue_ttl_s)  # it goes on to count in the queue
        if deadline_s is not None:
            heapq.heappush(self._deadlines, (deadline_s, pending.number, request.request_id))
        with self._lock:
            heapq.heappush(self._waiting, pending)
            if self._is_working:
                return
            self._is_working = True
        self._thread.submit(self._work)

    def take(self, request_id: str) -> Request | None:
        """The request leaves: its grammar is compiled, or need not be. None: it is not here (any more)."""
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return None
        self._nums[pending.rank] -= 1
        self._num_tokens[pending.rank] -= pending.request.num_prompt_tokens
        with self._lock:
            pending.is_wanted = False
            self._num_unwanted += 1
            # So that what was given up never piles up, here and among the deadlines.
            if 2 * self._num_unwanted > len(self._waiting):
                self._waiting = [one for one in self._waiting if one.is_wanted]
                heapq.heapify(self._waiting)
                self._num_unwanted = 0
        if len(self._deadlines) > 2 * len(self._pending) + _NUM_SPARE:
            self._deadlines = [one for one in self._deadlines if self._is_here(one[1], one[2])]
            heapq.heapify(self._deadlines)
        return pending.request

    @property
    def has_deadlines(self) -> bool:
        """`take_expired` may have somebody to return, now or later."""
        return bool(self._deadlines)

    def next_deadline_s(self) -> float | None:
        """When `take_expired` has somebody to return; None = nobody has a deadline here."""
        while self._deadlines and not self._is_here(*self._deadlines[0][1:]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_expired(self, now: float) -> list[Request]:
        """Return those that waited as long as they may; they have left."""
        expired = []
        while (deadline_s := self.next_deadline_s()) is not None and deadline_s <= now:
            request = self.take(heapq.heappop(self._deadlines)[2])
            assert request is not None, "a deadline of somebody who left"
            expired.append(request)
        return expired

    def retry_after_s(self, tier: ServiceTier) -> float:
        """When a refused client should come back, seconds: when all of its tier and above is compiled, as far as measured."""
        with self._lock:
            compile_s = self._compile_s
        wait_s = max(MIN_RETRY_S, sum(self._nums[: self._ranks[tier] + 1]) * compile_s)
        self._num_refused += 1
        return min(MAX_RETRY_S, wait_s * (1 + _SPREAD * evenly_spread(self._num_refused)))

    def close(self) -> None:
        """Compile nothing more; what has begun ends by itself."""
        with self._lock:
            self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_here(self, number: int, request_id: str) -> bool:
        pending = self._pending.get(request_id)
        return pending is not None and pending.number == number

    # -- on the compiler's thread

    def _work(self) -> None:
        while (request := self._next()) is not None:
            begin_s = self._clock()
            error: UltrafastError | None = None
            try:
                self._prepare(request)
            except InvalidRequestError as reason:
                error = reason
            except Exception as bug:  # noqa: BLE001 - boundary: that request's failure; the others still want their grammars
                where = traceback.extract_tb(bug.__traceback__)[-1]  # and not its text, which may quote a client
                _log.error("a grammar could not be compiled: %s at %s:%d", type(bug).__name__, where.filename, where.lineno or 0)
                error = EngineFailedError("the grammar could not be compiled", hint="the log of the server says why")
            self._learn(self._clock() - begin_s)
            self._on_done(Compiled(request, error))

    def _next(self) -> Request | None:
        with self._lock:
            while self._waiting:
                pending = heapq.heappop(self._waiting)
                if pending.is_wanted:
                    return pending.request
                self._num_unwanted -= 1
            self._is_working = False
            return None

    def _learn(self, duration_s: float) -> None:
        with self._lock:
            mean_s = self._compile_s
            self._compile_s = _MEAN_KEEP * mean_s + (1 - _MEAN_KEEP) * duration_s if mean_s else duration_s
