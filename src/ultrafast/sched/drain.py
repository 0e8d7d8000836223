"""How fast the queue drains, measured, and when a refused client should come back.

    own rate(rank)    = requests of this tier that left the queue / time during which such requests waited
    common rate(rank) = the same of this and all more urgent tiers together

Two things are measured so: places (who got one) tell how long the wait for a place is, departures (who got one, gave up or waited
in vain) how soon the queue has room again. A queue whose requests all expire gives no places and still empties.

Only time with a backlog counts: without one, the rate would tell how fast requests arrive, not how fast they could be served. Old
time fades with a half-life of about `HALF_LIFE_S`; a backlog that moves more slowly than earlier ones is believed as soon as it
is seen, and once a queue has been empty for `FORGET_S`, it is over that it was slow. A wait is the longer one of what both rates
say: the common rate knows who is ahead now, the tier's own knows that more urgent ones will keep coming.

Refused clients get slots one after the other, each one place further down the queue, so that they do not come back as a herd. As
long as slots are promised, newcomers leave room in the queue (see `gate.py`) for those who come when told.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence

HALF_LIFE_S = 30.0
FORGET_S = 8.0
"""Short beside the two minutes of the largest advice, and longer than the gaps between bursts of one load."""
MIN_RETRY_S = 1.0
MAX_RETRY_S = 120.0
_JITTER = 0.2
_JITTER_SLOTS = 10.0
_FAR_SPREAD = 0.5
"""Who cannot be promised a slot comes back in the last so much of the longest advice: there may be many of them, all alike."""
_UNKNOWN_RATE = 1.0
_GOLDEN = 0.6180339887498949
_GRACE_S = 1.0
_SAME_S = 1e-9


def evenly_spread(number: int) -> float:
    """The fraction in [0, 1) of the number-th client: even however many there are, without a random source.

    Multiples of the golden ratio, modulo 1 (Weyl sequence).
    """
    return number * _GOLDEN % 1.0


class Drain:
    """Rates and retry slots, by rank."""

    def __init__(self, num_ranks: int) -> None:
        self._own = [_Rate() for _ in range(num_ranks)]
        self._common = [_Rate() for _ in range(num_ranks)]
        self._slots_s: list[list[float]] = [[] for _ in range(num_ranks)]
        self._promised: list[deque[float]] = [deque() for _ in range(num_ranks)]
        self._num_told = 0
        self._had_backlog = False

    def step_finished(self, duration_s: float, num_started: Sequence[int], num_waiting: Sequence[int], now: float) -> None:
        """Book one step: requests that got their first place in it, and those that wait after it, by rank."""
        has_backlog = any(num_waiting)
        if not (has_backlog or self._had_backlog):
            return  # no rate changes
        self._had_backlog = has_backlog
        started = waiting = 0
        for rank, (own, common) in enumerate(zip(self._own, self._common, strict=True)):
            started += num_started[rank]
            waiting += num_waiting[rank]
            own.book(duration_s, num_started[rank], now, has_backlog=num_waiting[rank] > 0)
            common.book(duration_s, started, now, has_backlog=waiting > 0)

    def gave_up(self, rank: int) -> None:
        """Book one that left the queue without a place: it expired, or its client went away."""
        for rate in (self._own[rank], *self._common[rank:]):
            rate.book_departure()

    def rate(self, rank: int, now: float) -> float | None:
        """Requests of this tier that leave the queue per second, at the expense of no other; None = not measured yet."""
        common = self._common[rank].departures_per_s(now)
        own = self._own[rank].departures_at_most_per_s(now)
        return common if common is None or own is None else min(common, own)

    def wait_s(self, rank: int, num_waiting: Sequence[int], now: float) -> float | None:
        """How long one more of a tier will wait for a place, seconds; None before anything was measured.

        Args:
            rank: of its tier.
            num_waiting: requests that wait now, by rank.
            now: seconds.
        """
        own = self._own[rank].places_at_most_per_s(now)
        # That nobody has got a place yet, for as long as somebody has waited for one, is a measure, too.
        common = self._common[rank].places_per_s(now) or self._common[rank].places_at_most_per_s(now)
        if common is None:
            return None
        own = common if own is None else min(common, own)
        return max((sum(num_waiting[: rank + 1]) + 1) / common, (num_waiting[rank] + 1) / own)

    def turn_s(self, rank: int, num_waiting: Sequence[int], now: float) -> float | None:
        """When all who wait now, and one more, will have left the queue, seconds; None before anything was measured.

        Never later than `wait_s`: who is ahead may also leave without a place.
        """
        common, own = self._common[rank].departures_per_s(now), self.rate(rank, now)
        if common is None or own is None:
            return None
        return max((sum(num_waiting[: rank + 1]) + 1) / common, (num_waiting[rank] + 1) / own)

    def retry_after_s(self, rank: int, wait_s: float | None, now: float) -> float:
        """Return when a refused client should come back, in [1, 120] seconds; below that, it is promised a slot.

        Args:
            rank: of its tier.
            wait_s: how long it takes until coming back makes sense; None = unknown.
            now: seconds.
        """
        rate = self.rate(rank, now) or _UNKNOWN_RATE
        first_s = now + (1.0 / rate if wait_s is None else wait_s)
        slot_s = self._free_slot_s(rank, first_s, rate, now)
        self._num_told += 1
        fraction = evenly_spread(self._num_told)
        if slot_s - now > MAX_RETRY_S:  # too far away for a promise, and no reason to send the next one further
            return MAX_RETRY_S * (1.0 - _FAR_SPREAD * fraction)
        spread = _JITTER * fraction
        insort(self._slots_s[rank], slot_s)
        retry_s = slot_s - now + spread * min(slot_s - now, _JITTER_SLOTS / rate)
        retry_s = min(max(retry_s, MIN_RETRY_S * (1.0 + spread)), MAX_RETRY_S)
        insort(self._promised[rank], now + retry_s)
        return retry_s

    def num_promised(self, rank: int, num_places: int, now: float) -> int:
        """Clients of a tier that were told to come back, and should do so before `num_places` of its queue have drained."""
        until_s = now + num_places / (self.rate(rank, now) or _UNKNOWN_RATE)
        promised = self._promised[rank]
        while promised and promised[0] + _GRACE_S < now:
            promised.popleft()
        return min(num_places, bisect_right(promised, until_s))

    def _free_slot_s(self, rank: int, first_s: float, rate: float, now: float) -> float:
        """The first slot from `first_s` on that is nobody's. Slots of a slower time, further apart, have room between them.

        taken   |  |  |  |        |        |      1/rate apart since the queue drains faster
        free                ^
        """
        slots = self._slots_s[rank]
        del slots[: bisect_right(slots, now)]
        begin = low = bisect_right(slots, first_s - 1.0 / rate + _SAME_S)
        high = len(slots)
        while low < high:  # the end of those that stand close together
            middle = (low + high) // 2
            if slots[middle] > first_s + (middle - begin) / rate + _SAME_S:
                high = middle
            else:
                low = middle + 1
        return first_s + (low - begin) / rate


class _Count:
    """Requests that left a queue over the time in which it had a backlog, fading."""

    def __init__(self) -> None:
        self.num_started = 0.0
        self.num_left = 0.0
        self.backlog_s = 0.0

    def book(self, duration_s: float, num_started: int) -> None:
        keep = 0.5 ** (duration_s / HALF_LIFE_S)
        self.num_started = self.num_started * keep + num_started
        self.num_left = self.num_left * keep + num_started
        self.backlog_s = self.backlog_s * keep + duration_s

    def clear(self) -> None:
        self.num_started = self.num_left = self.backlog_s = 0.0


class _Rate:
    """Departures from the queue over time with a backlog.

    Of what was counted over all backlogs and what over the present one alone the slower counts: a queue that drained fast an hour
    or a minute ago and does not now is a slow one. One departure is added to those of the present, which may be about to come.
    """

    def __init__(self) -> None:
        self._all = _Count()
        self._present = _Count()
        self._had_backlog = False
        self._backlog_until_s = 0.0

    def book(self, duration_s: float, num_started: int, now: float, *, has_backlog: bool) -> None:
        # Those who found a free place waited for nobody: they say nothing about how fast places become free.
        if self._had_backlog:
            self._all.book(duration_s, num_started)
            self._present.book(duration_s, num_started)
        if has_backlog:
            self._forget_if_idle(now)
            self._backlog_until_s = now
        else:
            self._present.clear()
        self._had_backlog = has_backlog

    def book_departure(self) -> None:
        if self._had_backlog:
            self._all.num_left += 1.0
            self._present.num_left += 1.0

    def places_per_s(self, now: float) -> float | None:
        """None before anything was measured."""
        return self._per_s(self._all.num_started, self._present.num_started, now)

    def departures_per_s(self, now: float) -> float | None:
        """None before anything was measured; that nobody left for a while is something."""
        is_starved = self._all.backlog_s > 1.0 / _UNKNOWN_RATE
        return self.departures_at_most_per_s(now) if is_starved else self._per_s(self._all.num_left, self._present.num_left, now)

    def places_at_most_per_s(self, now: float) -> float | None:
        """As `places_per_s` for one that may be starved: not even one place in so much time. None before there was a backlog."""
        return self._per_s(max(self._all.num_started, 1.0), self._present.num_started, now)

    def departures_at_most_per_s(self, now: float) -> float | None:
        """As `places_at_most_per_s`."""
        return self._per_s(max(self._all.num_left, 1.0), self._present.num_left, now)

    def _per_s(self, num: float, num_present: float, now: float) -> float | None:
        if num <= 0 or self._all.backlog_s <= 0:
            return None
        rate = num / self._all.backlog_s
        if self._present.backlog_s > 0:
            rate = min(rate, (num_present + 1.0) / self._present.backlog_s)
        return None if rate < _UNKNOWN_RATE and self._is_over(now) else rate

    def _is_over(self, now: float) -> bool:
        return not self._had_backlog and now - self._backlog_until_s > FORGET_S

    def _forget_if_idle(self, now: float) -> None:
        """Before a new backlog: what an old one told that was slow must not outweigh what is seen now."""
        if self._all.backlog_s > 0 and self._all.num_left < self._all.backlog_s * _UNKNOWN_RATE and self._is_over(now):
            self._all.clear()
