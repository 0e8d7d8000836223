"""Everything a scheduler knows, and the transitions of a request between its states; each keeps all the books in one go.

    add          start            finish
     -> waiting -------> running --------> gone
          ^  |              |
          |  +--> parked    | preempt
          |      (sharing)  |
          +-----------------+

No policy here: who moves is decided elsewhere.
"""

from __future__ import annotations

from ultrafast.core.events import Event, RequestPreempted, RequestScheduled
from ultrafast.core.request import FinishReason, RequestState
from ultrafast.kv.ledger import KvLedger
from ultrafast.kv.tree import Match
from ultrafast.sched.cost import CostModel
from ultrafast.sched.faults import Faults
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.sharing import Followers
from ultrafast.sched.speculation.drafting import Drafting
from ultrafast.sched.waiting import WaitingQueue


class SchedulerState:
    """Requests by state, the KV ledger, what was learnt, and events not yet handed out."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.ledger = KvLedger(
            capacity_tokens=limits.kv_capacity_tokens,
            max_num_running=limits.max_num_running,
            max_num_cached=limits.max_num_cached,
            max_cached_tokens=limits.max_cached_tokens,
            can_trim=limits.can_trim,
            has_cache=limits.enable_prefix_cache,
            block_size=limits.block_size,
        )
        self.live: dict[str, LiveRequest] = {}
        self.waiting = WaitingQueue()
        self.followers = Followers()
        self.running: list[LiveRequest] = []
        self.cost = CostModel()
        self.faults = Faults()
        self.drafting = Drafting(limits)
        self._events: list[Event] = []

    def emit(self, event: Event) -> None:
        self._events.append(event)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """Hand out the events since the last call, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    def start(self, match: Match | None, now: float) -> LiveRequest:
        """From waiting to running: the head of the queue gets a sequence, and the matched prefix with it."""
        live = self.waiting.pop()
        live.state = RequestState.RUNNING
        live.sequence = self.ledger.start(live.request_id, live.namespace, match, now)
        live.num_computed = live.sequence.length
        if live.num_cached_first is None:
            live.num_cached_first = min(live.num_computed, live.request.num_prompt_tokens)
            live.scheduled_s = now
        self.running.append(live)
        self.emit(RequestScheduled(live.request_id, now, live.num_computed))
        return live

    def restart_without_reuse(self, live: LiveRequest) -> None:
        """Its prefix copy came to nothing: it keeps its place and computes everything."""
        assert live.sequence is not None, f"{live.request_id} has no sequence whose copy could fail"
        self.ledger.forget(live.sequence)
        live.sequence = self.ledger.start(live.request_id, live.namespace, None, 0.0)
        live.num_computed = 0
        live.can_reuse = False
        if not live.num_preemptions:
            live.num_cached_first = 0
        self._events = [
            RequestScheduled(event.request_id, event.at_s, 0)
            if isinstance(event, RequestScheduled) and event.request_id == live.request_id
            else event
            for event in self._events
        ]

    def park(self, leader: LiveRequest, until: int) -> None:
        """The head of the queue waits for a leader's prefix instead of for its turn."""
        self.followers.park(self.waiting.pop(), leader, until)

    def release_followers(self, leader: LiveRequest) -> None:
        """After `leader` advanced: those who waited for that prefix take their turn again."""
        for follower in self.followers.release_ready(leader):
            self.waiting.push(follower)

    def preempt(self, live: LiveRequest, now: float) -> None:
        """From running to waiting, at the front of its tier; its cells are freed and computed again later."""
        self._stop_running(live)
        assert live.sequence is not None, "a running request has a sequence"
        self.ledger.free(live.sequence)
        live.sequence = None
        live.num_computed = 0
        live.num_preemptions += 1
        live.state = RequestState.PREEMPTED
        self.waiting.push(live)
        self.emit(RequestPreempted(live.request_id, now, live.request.tier))

    def finish(self, live: LiveRequest, reason: FinishReason, now: float, error: str | None = None) -> None:
        """From any state to gone. Success leaves its KV in the cache; any other end frees it."""
        if live.state is RequestState.RUNNING:
            self._stop_running(live)
        else:
            self.waiting.discard(live)
            self.followers.discard(live)
        if live.sequence is not None:
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                self.ledger.finish(live.sequence, now)
            else:
                self.ledger.free(live.sequence)
            live.sequence = None
        live.state = RequestState.FINISHED
        del self.live[live.request_id]
        self.emit(live.finished_event(reason, now, error))

    def _stop_running(self, live: LiveRequest) -> None:
        self.running.remove(live)
        for follower in self.followers.release_all(live):
            self.waiting.push(follower)
