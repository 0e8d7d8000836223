"""Everything a scheduler knows, and the transitions of a request between its states; each keeps all the books in one go.

    add          start            finish
     -> waiting -------> running --------> gone
          ^  |            |  ^  |
          |  +--> parked  |  |  | pause, resume (the sequence and its KV stay)
          |      (sharing)|  v  v
          |               | paused
          +---------------+---+  preempt (the sequence is freed)

No policy here: who moves is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ultrafast.core.events import DropReason, Event, RequestPreempted, RequestScheduled
from ultrafast.core.request import FinishReason, RequestState
from ultrafast.core.step import SequenceWork
from ultrafast.kv.index import Part
from ultrafast.kv.ledger import KvLedger
from ultrafast.kv.tree import Match
from ultrafast.sched import admission
from ultrafast.sched.beliefs import Beliefs
from ultrafast.sched.cost import CostModel
from ultrafast.sched.deadlines import ExecutionDeadlines, QueueDeadlines
from ultrafast.sched.departing import Departing
from ultrafast.sched.drain import Drain
from ultrafast.sched.faults import Faults
from ultrafast.sched.interruption import Interruptions
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.reservation import Reservations
from ultrafast.sched.restore import Restorer
from ultrafast.sched.shares import Shares
from ultrafast.sched.sharing import Followers
from ultrafast.sched.side import Side
from ultrafast.sched.speculation.drafting import Drafting
from ultrafast.sched.waiting import WaitingQueue


class SchedulerState:
    """Requests by state, the KV ledger, what was learnt, and events not yet handed out.

    Attributes:
        num_holding: requests that hold a sequence, running or paused, by rank.
        num_preempted: preemptions since the start.
        most_promised: cells that all who hold a sequence may still need, at most (see `admission`); None = not known. What is
            promised to one never grows, so this is the last exact sum and the promises of all who started since.
        num_started: requests that got their first place since the last step was booked, by rank.
        last_step_s: how long the last step took.
        beliefs: of the last look at everything.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.ledger = KvLedger(
            capacity_tokens=limits.kv_capacity_tokens,
            max_num_running=limits.max_num_running + limits.max_num_paused,
            max_num_cached=limits.max_num_cached,
            max_cached_tokens=limits.max_cached_tokens,
            can_trim=limits.can_trim,
            has_cache=limits.enable_prefix_cache,
            block_size=limits.block_size,
            level_limits=limits.levels,
            first_seq_id=limits.first_seq_id,
        )
        self.live: dict[str, LiveRequest] = {}
        self.waiting = WaitingQueue()
        self.followers = Followers()
        self.running: list[LiveRequest] = []
        self.paused: list[LiveRequest] = []
        self.cost = CostModel()
        self.restorer = Restorer(self.ledger, self.cost, limits.step_target_s)
        self.reservations = Reservations(limits, self.cost)
        self.departing = Departing(self.ledger, limits)
        self.faults = Faults()
        self.shares = Shares(limits.tiers)
        self.interruptions = Interruptions(can_interrupt=limits.can_interrupt)
        self.side = Side(limits, self.cost)
        self.drain = Drain(len(limits.tiers))
        self.deadlines = QueueDeadlines()
        self.execution_deadlines = ExecutionDeadlines()
        self.num_holding = [0] * len(limits.tiers)
        self.num_preempted = 0
        self.most_promised: int | None = None
        self.num_started = [0] * len(limits.tiers)
        self.last_step_s = 0.0
        self.drafting = Drafting(limits)
        self.look_up_beliefs()
        self._events: list[Event] = []

    def look_up_beliefs(self) -> None:
        """To be done whenever a step is planned after a look at everything."""
        self.beliefs = Beliefs.look_up(self.cost, self.reservations, self.drafting)

    def emit(self, event: Event) -> None:
        self._events.append(event)

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """Hand out the events since the last call, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    @property
    def holders(self) -> list[LiveRequest]:
        """Everybody who holds a sequence, and so KV: running or paused."""
        return self.running + self.paused

    @property
    def num_holders(self) -> int:
        return len(self.running) + len(self.paused)

    @property
    def num_unplaced(self) -> int:
        """Requests of all tiers without a place, counted as `num_queued` does."""
        return len(self.waiting) + len(self.followers) + len(self.restorer.aside)

    def num_queued(self, rank: int) -> int:
        """Requests of one tier without a place: those that wait for a prefix or for the disk, too."""
        return self.waiting.num_of(rank) + self.followers.num_of(rank) + self.restorer.num_aside_of(rank)

    def num_queued_tokens(self, rank: int) -> int:
        """Prompt and output tokens of those whom `num_queued` counts."""
        parked, aside = self.followers.num_tokens_of(rank), self.restorer.num_aside_tokens_of(rank)
        return self.waiting.num_tokens_of(rank) + parked + aside

    def idle_cell_s(self, num_outputs: int, num_prefill_tokens: int) -> float:
        """What each idle cell adds to a step. Learnt only where it was not measured: one stream's steps do not tell."""
        measured_s = self.limits.idle_cell_s
        if measured_s:
            return measured_s * (num_outputs + num_prefill_tokens)
        return self.cost.idle_cell_s(num_outputs, num_prefill_tokens)

    @property
    def top_rank(self) -> int | None:
        """Urgency of the most urgent request that a step can do something for (not those that wait for the disk); None = none."""
        head = self.waiting.head()
        ranks = [live.urgency for live in self.holders]
        return min([*ranks, head.rank] if head is not None else ranks, default=None)

    @property
    def num_waiting(self) -> list[int]:
        """Queued requests, by rank."""
        return self.waiting.nums()

    def start(self, live: LiveRequest, match: Match | None, now: float, restored: Sequence[Part] = ()) -> None:
        """From waiting to running: the head of its tier gets a sequence, the matched prefix with it, and `restored` soon."""
        self.waiting.pop(live)
        live.state = RequestState.RUNNING
        live.sequence = self.ledger.start(live.request_id, live.namespace, match, now)
        live.num_computed = live.sequence.length
        self.restorer.begin(live, list(restored), now)
        num_cached = live.num_computed + sum(part.num_tokens for part in restored)
        live.last_run_s = now
        if live.num_cached_first is None:
            live.num_cached_first = min(num_cached, live.request.num_prompt_tokens)
            live.scheduled_s = now
            self.num_started[live.rank] += 1
            self.execution_deadlines.placed(live, self.limits.tiers[live.rank].execution_ttl_s, now)
        self.running.append(live)
        self.num_holding[live.rank] += 1
        if self.most_promised is not None:
            self.most_promised += admission.promised_to(live, self.limits)
        tier = live.tier if live.downgrade_reason else None
        self.emit(RequestScheduled(live.request_id, now, num_cached, tier, live.downgrade_reason))

    def pause(self, live: LiveRequest) -> None:
        """From running to paused: it is in no step for a while. Who waits for its prefix goes on waiting."""
        self.running.remove(live)
        self.paused.append(live)
        live.state = RequestState.PAUSED
        live.num_pauses += 1

    def resume(self, live: LiveRequest) -> None:
        """From paused to running; nothing has to be computed again."""
        self.paused.remove(live)
        self.running.append(live)
        live.state = RequestState.RUNNING

    def restart_without_reuse(self, live: LiveRequest) -> None:
        """Its prefix copy came to nothing: it keeps its place and computes everything."""
        assert live.sequence is not None, f"{live.request_id} has no sequence whose copy could fail"
        self.restorer.discard(live)
        self.ledger.forget(live.sequence)
        live.sequence = self.ledger.start(live.request_id, live.namespace, None, 0.0)
        live.num_computed = 0
        self.most_promised = None  # it needs more than was promised
        live.can_reuse = False
        live.num_host_tokens = live.num_disk_tokens = 0
        if not live.num_preemptions:
            live.num_cached_first = 0
        self._events = [
            replace(event, num_cached_tokens=0)
            if isinstance(event, RequestScheduled) and event.request_id == live.request_id
            else event
            for event in self._events
        ]

    def step_aside(self, live: LiveRequest) -> None:
        """The head of its tier waits for the disk instead of for its turn."""
        self.waiting.pop(live)
        self.restorer.step_aside(live)

    def take_back(self, now: float) -> None:
        """Those for whom the disk has done its part, or is late, take their turn again."""
        for live in self.restorer.release(now):
            self.waiting.push(live)

    def park(self, live: LiveRequest, leader: LiveRequest, until: int) -> None:
        """The head of its tier waits for a leader's prefix instead of for its turn."""
        self.waiting.pop(live)
        self.followers.park(live, leader, until)

    def release_followers(self, leader: LiveRequest) -> None:
        """After `leader` advanced: those who waited for that prefix take their turn again."""
        for follower in self.followers.release_ready(leader):
            self.waiting.push(follower)

    def begin_side(self, live: LiveRequest, chunk: SequenceWork, now: float) -> None:
        """A chunk of its prompt is computed beside the steps; the cells that its KV will need are set aside."""
        self.side.begin(live, chunk, now)
        self.ledger.num_held = len(chunk.tokens)

    def give_up_side(self) -> None:
        """The chunk is done, or nobody wants it any more."""
        self.side.give_up()
        self.ledger.num_held = 0

    def preempt(self, live: LiveRequest, now: float) -> None:
        """From running or paused to waiting, at the front of its tier; its cells are freed.

        Where there is host memory its KV waits there and is loaded again; else it is computed again.
        """
        self._leave(live)
        assert live.sequence is not None, "a running or paused request has a sequence"
        self.restorer.discard(live)
        self.ledger.swap_out(live.sequence, live.level_namespace)
        self.restorer.hold(live, live.level_namespace, now)
        self.ledger.free(live.sequence)
        live.sequence = None
        live.num_once = max(live.num_once, live.num_computed)
        live.num_computed = 0
        live.is_kept = False
        live.num_preemptions += 1
        self.num_preempted += 1
        live.state = RequestState.PREEMPTED
        self.waiting.push(live)
        self.emit(RequestPreempted(live.request_id, now, live.tier))

    def leave_queue(self, live: LiveRequest) -> None:
        """It gets no place any more, and waits in nobody's way; `finish` must follow. Once more does nothing."""
        if self.waiting.discard(live) and live.scheduled_s is None:
            self.drain.gave_up(live.rank)
        self.followers.discard(live)

    def finish(
        self,
        live: LiveRequest,
        reason: FinishReason,
        now: float,
        error: str | None = None,
        *,
        drop_reason: DropReason | None = None,
        retry_after_s: float | None = None,
        error_code: str | None = None,
    ) -> None:
        """From any state to gone. Success leaves its KV in the cache; any other end frees it."""
        if live.state in (RequestState.RUNNING, RequestState.PAUSED):
            self._leave(live)
        else:
            self.leave_queue(live)
        self.restorer.discard(live)
        if live.sequence is not None:
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                self.reservations.finished(live)
                self.ledger.finish(live.sequence, now, is_kept=live.request.is_pinned)
            else:
                self.ledger.free(live.sequence)
            live.sequence = None
        event = live.finished_event(reason, now, error, drop_reason, retry_after_s if drop_reason else None)
        live.state = RequestState.FINISHED
        del self.live[live.request_id]
        if error_code is not None:
            event = replace(event, error_code=error_code)
        self.emit(event)

    def _leave(self, live: LiveRequest) -> None:
        if self.side.live is live:
            self.give_up_side()
        (self.running if live.state is RequestState.RUNNING else self.paused).remove(live)
        self.num_holding[live.rank] -= 1
        for follower in self.followers.release_all(live):
            self.waiting.push(follower)
