"""The cost gate: a run is fetched only where the measured bandwidth beats computing its tokens again.

    fetch:      fixed + bytes / bandwidth          measured, per way: save, load (host -> device), read (disk -> host), write
    recompute:  tokens * seconds per token         from the cost model
    fetch if    fetch < 0.7 * recompute            0.7: a fetch that is as slow as the computation is not worth its risk

A way that was not used for a while is believed to be as fast as at the start again: a disk that was slow once (a busy
neighbour) gets another chance, at the price of one slow read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ultrafast.kv.index import Part
from ultrafast.kv.run import Place

WORTH_SHARE = 0.7
FORGET_AFTER_S = 60.0
_WEIGHT = 0.3
FIXED_S = 0.0005
BUSY_SHARE = 10
"""While requests run, what is moved in advance takes at most 1/BUSY_SHARE of the time, per way: it uses their cores."""


class Way(StrEnum):
    """A direction in which bytes move."""

    SAVE = "save"
    LOAD = "load"
    WRITE = "write"
    READ = "read"


PRIOR_BYTES_PER_S = {Way.SAVE: 0.5e9, Way.LOAD: 1e9, Way.WRITE: 0.1e9, Way.READ: 0.2e9}
"""Believed before anything was measured: slow for each kind of hardware, so that only clear gains are tried."""


@dataclass(slots=True)
class _Speed:
    bytes_per_s: float
    measured_s: float | None = None


class Bandwidths:
    """Measured speeds of the four ways."""

    def __init__(self) -> None:
        self._speeds = {way: _Speed(PRIOR_BYTES_PER_S[way]) for way in Way}

    def observe(self, way: Way, num_bytes: int, duration_s: float, now: float) -> None:
        """Learn from a transfer that ran; one without duration (no clock) teaches nothing."""
        if duration_s <= 0 or num_bytes <= 0:
            return
        speed, seen = self._speeds[way], num_bytes / duration_s
        known = self._current(way, now)
        speed.bytes_per_s = seen if speed.measured_s is None else known + _WEIGHT * (seen - known)
        speed.measured_s = now

    def seconds(self, way: Way, num_bytes: int, now: float) -> float:
        """Predict a transfer."""
        return FIXED_S + num_bytes / self._current(way, now)

    def apart_s(self, way: Way, num_bytes: int, now: float) -> float:
        """How long after the start of such a transfer the next one may start while requests run."""
        return BUSY_SHARE * self.seconds(way, num_bytes, now)

    def is_known(self, way: Way, now: float) -> bool:
        """Whether the speed was measured lately; else `seconds` is a guess."""
        measured_s = self._speeds[way].measured_s
        return measured_s is not None and now - measured_s <= FORGET_AFTER_S

    def _current(self, way: Way, now: float) -> float:
        speed = self._speeds[way]
        if speed.measured_s is not None and now - speed.measured_s > FORGET_AFTER_S:
            return max(speed.bytes_per_s, PRIOR_BYTES_PER_S[way])
        return speed.bytes_per_s


def worth_fetching(parts: Iterable[Part], bandwidths: Bandwidths, token_s: float | None, now: float) -> list[Part]:
    """Return the first parts whose fetch beats recomputation; they must stay contiguous, so the first bad one ends them.

    `token_s`: seconds to compute one prompt token; None = not known yet, then everything is worth it.
    """
    chosen: list[Part] = []
    for part in parts:
        if token_s is not None and fetch_s(part, bandwidths, now) >= WORTH_SHARE * part.num_tokens * token_s:
            break
        chosen.append(part)
    return chosen


def fetch_s(part: Part, bandwidths: Bandwidths, now: float) -> float:
    """Predict how long it takes until the part is on the device."""
    seconds = bandwidths.seconds(Way.LOAD, part.run.num_bytes, now)
    if part.run.host is not Place.PRESENT:
        seconds += bandwidths.seconds(Way.READ, part.run.num_bytes, now)
    return seconds
