"""How fast KV leaves the device: the copy of a long sequence is spread over steps, so that no stream stalls for it.

A preemption first copies the victim's KV to host memory. At a gigabyte a second that is some milliseconds for a run of 128
tokens, and most of a second for a long sequence of a large model. So a victim whose KV is not there yet stays where it is, some
runs are copied in each step, and whoever needs its cells asks again:

- while a stream at least as urgent as whoever needs the cells decodes: within half the target step time;
- while only less urgent streams would wait: within twice that target;
- in advance, when few cells are left: some of whoever would have to leave next, the faster the nearer that is.

Where nobody can advance at all, the rest is copied at once: there is nobody to wait for.
"""

from __future__ import annotations

from ultrafast.kv.ledger import KvLedger
from ultrafast.sched.kept import choose_loser
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest

WATCHED_SHARE = 0.5
UNWATCHED_SHARE = 2.0
LOW_SHARE = 20
"""Copies in advance begin when less than 1/LOW_SHARE of the pool can be had; with twice as much they were in vain."""


class Departing:
    """The policy; the copies are ordered by `kv.departure`."""

    def __init__(self, ledger: KvLedger, limits: SchedulerLimits) -> None:
        self._ledger = ledger
        self._limits = limits

    @property
    def is_copying(self) -> bool:
        """Copies were ordered in this plan: asking again in the next one is not in vain."""
        departures = self._ledger.departures
        return departures is not None and departures.spent_s > 0

    def may_leave(self, victim: LiveRequest, urgency: int, running: list[LiveRequest]) -> bool:
        """Whether a victim can be preempted now for somebody of this urgency; else some of it is copied."""
        departures = self._ledger.departures
        if departures is None or victim.sequence is None:
            return True
        is_watched = any(live.is_decoding and live.urgency <= urgency and live is not victim for live in running)
        budget_s = self._limits.step_target_s * (WATCHED_SHARE if is_watched else UNWATCHED_SHARE)
        return departures.advance(victim.sequence, victim.level_namespace, self._ledger.now, budget_s)

    def copy_ahead(self, running: list[LiveRequest], paused: list[LiveRequest], now: float) -> None:
        """Look whether somebody will soon have to leave. Once per step, before places are given away.

        Args:
            running: who holds KV and may need more of it in each step.
            paused: who holds KV, too.
            now: seconds.
        """
        departures = self._ledger.departures
        if departures is None:
            return
        low = self._limits.kv_capacity_tokens // LOW_SHARE
        num_available = self._ledger.num_available(None)
        if num_available > 2 * low or len(running) + len(paused) < 2:
            if not departures.is_in_use:
                departures.forget_all()
        elif num_available < low:
            victim = choose_loser(running + paused, self._limits)
            assert victim is not None, "there are holders"
            assert victim.sequence is not None, "holders hold a sequence"
            num_decoding = sum(live.is_decoding for live in running)
            num_steps, budget_s = num_available // max(1, num_decoding), self._limits.step_target_s * WATCHED_SHARE
            departures.ahead(victim.sequence, victim.level_namespace, now, num_steps=num_steps, budget_s=budget_s)
