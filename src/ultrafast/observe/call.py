"""The samples of one call as its client sees it: TTFT, ITL, TPOT, jitter, E2E, the four parts and the outcome.

Called once per delta on the event loop. A delta is only noted; notes become samples when the metrics are read, when the call
ends, or when `FOLD_DELTAS` have gathered (see `recorder`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.batches import observe_all
from ultrafast.observe.metrics import LatencyPart, Metrics, Outcome

MIN_JITTER_GAPS = 3
"""A standard deviation of fewer gaps says nothing."""
FOLD_DELTAS = 256
"""A call folds its notes when it has so many."""

Note = tuple[Callable[..., object], tuple[object, ...]]
"""A function of a metric and its arguments: a sample that waits."""


class CallSeries:
    """The metrics of one tier with their labels bound: a lookup per call instead of one per token."""

    __slots__ = ("e2e", "itl", "jitter", "outcomes", "output_tokens", "parts", "tpot", "ttft")

    def __init__(self, metrics: Metrics, tier: ServiceTier) -> None:
        self.ttft = metrics.ttft.labels(tier)
        self.itl = metrics.itl.labels(tier)
        self.tpot = metrics.tpot.labels(tier)
        self.jitter = metrics.jitter.labels(tier)
        self.e2e = metrics.e2e.labels(tier)
        self.output_tokens = metrics.output_tokens.labels(tier)
        self.parts = {part: metrics.latency_part.labels(tier, part) for part in LatencyPart}
        self.outcomes = {outcome: metrics.requests.labels(tier, outcome) for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class LatencyParts:
    """The time of a call in four parts, seconds; see `LatencyPart`."""

    network_s: float
    queue_s: float
    compute_s: float
    output_s: float

    @classmethod
    def divide(cls, total_s: float, *, network_s: float, queue_s: float, compute_s: float) -> LatencyParts:
        """Divide `total_s` so that the parts sum to it.

        Queue and compute stand as measured. Waiting for a slow reader overlaps the engine's work, so the network part is
        what remains of it beside them; output is the rest.
        """
        queue_s = min(max(queue_s, 0.0), total_s)
        compute_s = min(max(compute_s, 0.0), total_s - queue_s)
        network_s = min(max(network_s, 0.0), total_s - queue_s - compute_s)
        return cls(network_s, queue_s, compute_s, total_s - queue_s - compute_s - network_s)


class CallListener(Protocol):
    """Sees the samples of all calls as they are made. Must be quick and must not raise; `now` is monotonic seconds."""

    def on_first_delta(self, tier: ServiceTier, ttft_s: float, now: float) -> None: ...
    def on_gap(self, tier: ServiceTier, gap_s: float, num_tokens: int, now: float) -> None:
        """`num_tokens` came at once after `gap_s`: as many samples of gap_s / num_tokens."""

    def on_call_end(self, tier: ServiceTier, outcome: Outcome, parts: LatencyParts | None, now: float) -> None: ...


class _Gaps:
    """Gaps between the deltas of one choice: count, mean and squared deviation (Welford's method), without a list."""

    __slots__ = ("first_s", "last_s", "mean", "num_first", "num_gaps", "num_tokens", "squares")

    def __init__(self, now: float, num_tokens: int) -> None:
        self.first_s = self.last_s = now
        self.num_first = self.num_tokens = num_tokens
        self.num_gaps = 0
        self.mean = self.squares = 0.0

    def add(self, gap_s: float, now: float, num_tokens: int) -> None:
        self.last_s = now
        self.num_tokens += num_tokens
        self.num_gaps += 1
        offset = gap_s - self.mean
        self.mean += offset / self.num_gaps
        self.squares += offset * (gap_s - self.mean)

    @property
    def deviation_s(self) -> float:
        """Standard deviation of the gaps; at least one must have been added."""
        return math.sqrt(max(0.0, self.squares) / self.num_gaps)


class SlowestChoice(NamedTuple):
    """A choice of a call: its mean time per output token after the first delta, seconds, and all tokens that it had."""

    tpot_s: float
    choice: int
    num_tokens: int


class CallRecorder:
    """Records one call. Made by `Recorder.begin_call`. All methods belong to the event loop, but `fold` to any thread.

    Args:
        on_end: told once, when the call ends.
        later: takes samples that need not be in the metrics before these are read.
        listener: told of every delta as it comes, on the event loop.
    """

    __slots__ = (
        "_arrival_s",
        "_choices",
        "_fold_lock",
        "_heard_s",
        "_is_finished",
        "_later",
        "_listener",
        "_notes",
        "_on_end",
        "_series",
        "_tier",
        "_tiers",
        "first_delta_s",
    )

    def __init__(
        self,
        tiers: Mapping[ServiceTier, CallSeries],
        arrival_s: float,
        tier: ServiceTier,
        on_end: Callable[[CallRecorder], None],
        later: list[Note],
        listener: CallListener | None = None,
    ) -> None:
        self._tiers = tiers
        self._tier = tier
        self._series = tiers[tier]
        self._listener = listener
        self._arrival_s = arrival_s
        self._on_end = on_end
        self._later = later
        self._choices: dict[int, _Gaps] = {}
        self._notes: list[tuple[int, int, float]] = []
        self._heard_s: dict[int, float] = {}
        self._fold_lock = threading.Lock()
        self._is_finished = False
        self.first_delta_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of all deltas so far."""
        self.fold()
        return sum(choice.num_tokens for choice in self._choices.values())

    def serve_as(self, tier: ServiceTier) -> None:
        """The tier that really serves is known: everything from here on counts for it."""
        if self._notes:
            self.fold()
        self._tier = tier
        self._series = self._tiers[tier]

    def on_delta(self, index: int, num_tokens: int, now: float) -> None:
        """New output of choice `index` was handed to the client's connection; `num_tokens` tokens went into it."""
        notes = self._notes
        notes.append((index, num_tokens, now))
        if self.first_delta_s is None:
            self.first_delta_s = now
            self._later.append((self._series.ttft.observe, (max(0.0, now - self._arrival_s),)))
        elif len(notes) >= FOLD_DELTAS:
            self.fold()
        listener = self._listener
        if listener is not None:
            heard_s = self._heard_s.get(index)
            if heard_s is not None:
                listener.on_gap(self._tier, now - heard_s, num_tokens, now)
            elif not self._heard_s:
                listener.on_first_delta(self._tier, max(0.0, now - self._arrival_s), now)
            self._heard_s[index] = now

    def fold(self) -> None:
        """Turn the notes into samples."""
        with self._fold_lock:
            # The list is never replaced: what the event loop appends meanwhile stays in it.
            notes = self._notes[:]
            if not notes:
                return
            del self._notes[: len(notes)]
            gaps: list[tuple[float, int]] = []
            num_new = 0
            for index, num_tokens, now in notes:
                num_new += num_tokens
                choice = self._choices.get(index)
                if choice is None:
                    self._choices[index] = _Gaps(now, num_tokens)
                    continue
                gap_s = now - choice.last_s
                choice.add(gap_s, now, num_tokens)
                if num_tokens:
                    gaps.append((gap_s / num_tokens, num_tokens))
            if gaps:
                observe_all(self._series.itl, gaps)
            self._series.output_tokens.inc(num_new)

    @property
    def slowest_choice(self) -> SlowestChoice | None:
        """The choice with the longest mean time per output token; None when none has two deltas."""
        choices = [
            SlowestChoice((c.last_s - c.first_s) / (c.num_tokens - c.num_first), index, c.num_tokens)
            for index, c in self._choices.items()
            if c.num_tokens > c.num_first
        ]
        return max(choices, default=None)

    @property
    def worst_jitter_s(self) -> float | None:
        """The largest standard deviation of the gaps among the choices, seconds; None when none has three gaps."""
        return max((c.deviation_s for c in self._choices.values() if c.num_gaps >= MIN_JITTER_GAPS), default=None)

    def finish(self, outcome: Outcome, now: float, parts: LatencyParts | None = None) -> None:
        """Count the call out. `parts` only when it completed. A second call is a broken invariant."""
        assert not self._is_finished, "a call ends once"
        self._is_finished = True
        self._on_end(self)
        self.fold()
        series, later = self._series, self._later
        later.append((series.outcomes[outcome].inc, ()))
        if self._listener is not None:
            self._listener.on_call_end(self._tier, outcome, parts, now)
        if outcome is not Outcome.COMPLETED:
            return
        later.append((series.e2e.observe, (max(0.0, now - self._arrival_s),)))
        later.append((_observe_choices, (series, list(self._choices.values()))))
        if parts is not None:
            later.append((_observe_parts, (series, parts)))


def _observe_choices(series: CallSeries, choices: Iterable[_Gaps]) -> None:
    for choice in choices:
        num_later = choice.num_tokens - choice.num_first
        if num_later > 0:
            series.tpot.observe((choice.last_s - choice.first_s) / num_later)
        if choice.num_gaps >= MIN_JITTER_GAPS:
            series.jitter.observe(choice.deviation_s)


def _observe_parts(series: CallSeries, parts: LatencyParts) -> None:
    series.parts[LatencyPart.NETWORK].observe(parts.network_s)
    series.parts[LatencyPart.QUEUE].observe(parts.queue_s)
    series.parts[LatencyPart.COMPUTE].observe(parts.compute_s)
    series.parts[LatencyPart.OUTPUT].observe(parts.output_s)
