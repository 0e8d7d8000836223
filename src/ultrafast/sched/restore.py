"""Brings KV back from host memory and disk: for new requests whose prefix is there, and for those that were moved away.

    add       what is on disk starts to be read while the request still queues
    head      not all there yet: the request steps aside (PENDING), others go first; it comes back when it is, or is late
    start     what is in host memory is promised to its sequence
    step      runs are loaded, as many as fit into the step; the first prefill chunk follows the last of them

Loading a run is an operation of the plan like the sharing of a prefix, and fails like it: the request then computes everything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ultrafast.core.step import LoadRun
from ultrafast.kv.gate import Way, fetch_s
from ultrafast.kv.index import Part
from ultrafast.kv.ledger import KvLedger
from ultrafast.kv.levels import KvLevels
from ultrafast.kv.run import Place
from ultrafast.sched.cost import CostModel
from ultrafast.sched.live import LiveRequest

LATE_FACTOR = 3.0
MIN_WAIT_S = 0.1
MAX_WAIT_SHARE = 0.5
"""A request waits for the disk three times as long as was predicted, a tenth of a second at least (a first read is slow: cold
files, a busy machine), and never longer than half of what computing would take."""
BLIND_WAIT_S = 0.5
"""So long at least while nobody knows what computing takes: just after a start, when a read is slowest, too."""
STEP_SHARE = 0.5
"""While others decode, loads may take this share of the target step time; at least one run is loaded per step."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Parts that are being read for a request, all pinned, and until when it waits for them."""

    parts: list[Part]
    from_disk: frozenset[int]
    deadline_s: float


class Restorer:
    """Owned by the scheduler's state. Everything here is empty when there are no levels.

    Attributes:
        aside: requests that wait for nothing but the disk.
    """

    def __init__(self, ledger: KvLedger, cost: CostModel, step_target_s: float) -> None:
        self._ledger = ledger
        self._cost = cost
        self._step_target_s = step_target_s
        self._awaited: dict[LiveRequest, _Awaited] = {}
        self.aside: list[LiveRequest] = []
        self._loads: dict[LiveRequest, deque[Part]] = {}
        self._held: dict[LiveRequest, list[Part]] = {}

    def num_aside_of(self, rank: int) -> int:
        """Those of one tier."""
        return sum(live.rank == rank for live in self.aside)

    def num_aside_tokens_of(self, rank: int) -> int:
        """Their prompt and output tokens."""
        return sum(live.num_tokens for live in self.aside if live.rank == rank)

    @property
    def is_loading(self) -> bool:
        """Somebody who runs is not complete yet."""
        return bool(self._loads)

    def without_loading(self, lives: list[LiveRequest]) -> list[LiveRequest]:
        """Those whose sequence is complete. The very list where nobody's is being loaded."""
        return [live for live in lives if live not in self._loads] if self._loads else lives

    def reach(self, live: LiveRequest, num_matched: int, now: float) -> int:
        """Leading tokens that need not be computed when the device has `num_matched` of them; nothing is fetched yet."""
        levels = self._ledger.levels
        parts = self._find(levels, live, num_matched, now) if levels is not None and live.can_reuse else []
        return parts[-1].end if parts else num_matched

    # -- before the start ---------------------------------------------------------------------------------------------------

    def prefetch(self, live: LiveRequest, now: float) -> None:
        """Start to read what is on disk for a request that has just come."""
        levels = self._ledger.levels
        if levels is None or not live.can_reuse or live in self._awaited:
            return
        match = self._ledger.match(live.tokens, live.request.cache_salt)
        if match is not None:
            self._ledger.touch(match.source, now)
        self._await(live, self._find(levels, live, match.num_tokens if match else 0, now), levels, now)

    def _await(self, live: LiveRequest, parts: list[Part], levels: KvLevels, now: float) -> None:
        if all(part.run.host is Place.PRESENT for part in parts):
            return
        wait_s = sum(fetch_s(part, levels.bandwidths, now) for part in parts)
        from_disk = frozenset(part.run.run_id for part in parts if part.run.host is Place.ABSENT)
        fetched: list[Part] = []
        for part in parts:
            if not levels.fetch(part, now):
                break
            levels.holdings.pin([part])
            fetched.append(part)
        if fetched:
            limit_s = max(MIN_WAIT_S, LATE_FACTOR * wait_s)
            if (token_s := self._token_s) is not None:
                limit_s = min(limit_s, MAX_WAIT_SHARE * token_s * sum(part.num_tokens for part in fetched))
            else:
                limit_s = max(limit_s, BLIND_WAIT_S)
            self._awaited[live] = _Awaited(fetched, from_disk, now + limit_s)

    def must_wait(self, live: LiveRequest, now: float) -> bool:
        """Whether the head of the queue is PENDING: what it needs is being read and not late."""
        awaited = self._awaited.get(live)
        return awaited is not None and now < awaited.deadline_s and any(part.run.host is Place.ARRIVING for part in awaited.parts)

    def step_aside(self, live: LiveRequest) -> None:
        """It left the queue; `release` gives it back."""
        self.aside.append(live)

    def release(self, now: float) -> list[LiveRequest]:
        """Take out those that need not wait any more."""
        if not self.aside:
            return []
        ready = [live for live in self.aside if not self.must_wait(live, now)]
        self.aside = [live for live in self.aside if live not in ready]
        return ready

    def hold(self, live: LiveRequest, namespace: str, now: float) -> None:
        """It lost its place: keep what was just copied for it until it comes back, and fetch what only the disk has."""
        levels = self._ledger.levels
        if levels is not None:
            parts = levels.find(live.tokens, namespace, 0, len(live.tokens) - 1)
            held = [part for part in parts if part.run.host is not Place.ABSENT]
            levels.holdings.pin(held)
            self._held[live] = held
            self._await(live, self._worth(levels, live, parts, now), levels, now)

    # -- the start and after ------------------------------------------------------------------------------------------------

    def choose(self, live: LiveRequest, num_matched: int, now: float) -> list[Part]:
        """What can be loaded beyond the `num_matched` tokens that the device has: contiguous, in host memory, worth it."""
        levels = self._ledger.levels
        if levels is None or not (live.can_reuse or live in self._held):
            return []
        chosen: list[Part] = []
        for part in self._find(levels, live, num_matched, now):
            if part.run.host is not Place.PRESENT:
                break
            chosen.append(part)
        return chosen

    def begin(self, live: LiveRequest, parts: list[Part], now: float) -> None:
        """Promise these parts to a request that starts now."""
        levels = self._ledger.levels
        if levels is None:
            return
        awaited = self._awaited.get(live)
        from_disk = awaited.from_disk if awaited is not None else frozenset()
        if parts:
            levels.holdings.pin(parts)
            levels.holdings.used(parts, now)
            self._loads[live] = deque(parts)
            for part in parts if live.num_cached_first is None else ():
                if part.run.run_id in from_disk:
                    live.num_disk_tokens += part.num_tokens
                else:
                    live.num_host_tokens += part.num_tokens
        self._let_go(live, levels)

    def step(self, running: list[LiveRequest], now: float) -> None:
        """Order loads for the next step, in the order in which the requests run."""
        levels = self._ledger.levels
        if levels is None or not self._loads:
            return
        is_shared = any(live.is_decoding and live not in self._loads for live in running)
        budget_s = STEP_SHARE * self._step_target_s if is_shared else float("inf")
        spent_s = 0.0
        for live in [live for live in running if live in self._loads]:
            while live in self._loads and (spent_s == 0.0 or spent_s < budget_s):
                spent_s += levels.bandwidths.seconds(Way.LOAD, self._loads[live][0].run.num_bytes, now)
                self._load_next(live, levels)

    def discard(self, live: LiveRequest) -> None:
        """The request ends, or starts anew without reuse."""
        levels = self._ledger.levels
        if levels is None:
            return
        if live in self.aside:
            self.aside.remove(live)
        levels.holdings.unpin(self._loads.pop(live, ()))
        self._let_go(live, levels)

    def _load_next(self, live: LiveRequest, levels: KvLevels) -> None:
        loads, sequence = self._loads[live], live.sequence
        assert sequence is not None, "only running requests load"
        part = loads.popleft()
        # While it is loaded, the whole run is on the device beside the sequence.
        if part.run.host is Place.PRESENT and self._ledger.make_room(len(part.run.tokens)):
            self._ledger.note(
                LoadRun(live.request_id, part.run.run_id, sequence.seq_id, part.begin, part.end, len(part.run.tokens))
            )
            self._ledger.extend(sequence, live.tokens[part.begin : part.end])
            live.num_computed = part.end
        else:
            self._give_up(live, levels)
        levels.holdings.unpin([part])  # the load is ordered before any operation that drops the run
        if not self._loads.get(live):
            self._loads.pop(live, None)

    def _give_up(self, live: LiveRequest, levels: KvLevels) -> None:
        """No room: what is not loaded yet is computed."""
        levels.holdings.unpin(self._loads.pop(live))
        if live.num_cached_first is not None and not live.num_preemptions:
            live.num_cached_first = min(live.num_cached_first, live.num_computed)
            live.num_host_tokens = min(live.num_host_tokens, live.num_cached_first)
            live.num_disk_tokens = min(live.num_disk_tokens, live.num_cached_first - live.num_host_tokens)

    def _find(self, levels: KvLevels, live: LiveRequest, num_matched: int, now: float) -> list[Part]:
        parts = levels.find(live.tokens, live.level_namespace, num_matched, len(live.tokens) - 1)
        return self._worth(levels, live, parts, now)

    def _worth(self, levels: KvLevels, live: LiveRequest, parts: list[Part], now: float) -> list[Part]:
        """The first of these that are worth fetching; what is held for one that lost its place always is: it was promised."""
        held = self._held.get(live)
        if held is None:
            return levels.choose(parts, self._token_s, now)
        awaited = self._awaited.get(live)
        promised = {part.run.run_id for part in (*held, *(awaited.parts if awaited is not None else ()))}
        chosen: list[Part] = []
        for part in parts:
            if part.run.run_id not in promised and not levels.choose([part], self._token_s, now):
                break
            chosen.append(part)
        return chosen

    def _let_go(self, live: LiveRequest, levels: KvLevels) -> None:
        awaited = self._awaited.pop(live, None)
        if awaited is not None:
            levels.holdings.unpin(awaited.parts)
        levels.holdings.unpin(self._held.pop(live, ()))

    @property
    def _token_s(self) -> float | None:
        """Seconds per prompt token, once it is known."""
        token_s = self._cost.coefficients[2] if self._cost.is_fitted else 0.0
        return token_s or None
