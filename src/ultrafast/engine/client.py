"""The API process's side of one embedded engine: submit a request, read its events, whatever happens to the child.

Owns the child (through `Supervisor`) and the live requests (through `Ledger`). A lost child is replaced and every live request
goes on where it stopped, without a gap or a repeat. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Sequence

from ultrafast.core.clock import Clock
from ultrafast.core.errors import OverloadedError, UltrafastError, UnavailableError
from ultrafast.core.events import KvLevelsChanged, StepFinished
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.tiers import NEWCOMER_SHARE, ServiceTier
from ultrafast.engine.device_kv import DeviceKv, device_kv
from ultrafast.engine.health import EngineHealth, EngineRestarted, EngineState, RecoveryPolicy
from ultrafast.engine.ledger import Ledger
from ultrafast.engine.live import LiveRequest
from ultrafast.engine.load_progress import LoadProgress
from ultrafast.engine.messages import Abort, ClearCache, Loading, StepReport, Submit
from ultrafast.engine.options import EngineFacts, EngineOptions
from ultrafast.engine.stream import EngineStream
from ultrafast.engine.supervisor import Supervisor

CHILD_COMMAND = (sys.executable, "-P", "-m", "ultrafast.engine_process")
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Prompts that a child has not read yet (it reads at once unless it is stopped); beyond that, new requests are refused."""
_ABORT_GRACE_S = 2.0


class EngineClient:
    """One embedded engine.

    Args:
        options: what the child is configured with, each time it starts.
        clock: monotonic seconds, the clock of the child (`time.monotonic`) unless in tests.
        on_loading: told of the progress of every start.
        policy: when a child counts as stalled or hung, and how it is replaced.
        command: how to start a child; `arguments` and `--fd N` are appended.
    """

    def __init__(
        self,
        options: EngineOptions,
        clock: Clock = time.monotonic,
        on_loading: Callable[[Loading], None] | None = None,
        *,
        policy: RecoveryPolicy | None = None,
        command: Sequence[str] = CHILD_COMMAND,
        arguments: Sequence[str] = (),
    ) -> None:
        policy = policy or RecoveryPolicy()
        self._clock = clock
        self._on_loading = on_loading
        self._listeners: list[Callable[[StepReport], None]] = []
        self._request_listeners: list[Callable[[Request], None]] = []
        self._restart_listeners: list[Callable[[EngineRestarted], None]] = []
        self._clear_listeners: list[Callable[[], None]] = []
        self._load = LoadProgress()
        self._ledger = Ledger(clock, policy.max_request_crashes, self._observe)
        self._supervisor = Supervisor(options, self, command=(*command, *arguments), policy=policy, clock=clock)
        self._queue_bounds = {
            tier: policy.max_num_waiting for tier, policy in zip(options.tier_order, options.tiers, strict=True)
        }
        self._stats: StepFinished | None = None  # of the last step of the child of now
        self._may_hold_back = False  # a child was lost, and the ledger may not be through with it
        self._task: asyncio.Task[None] | None = None
        self._facts: EngineFacts | None = None
        self._failure: UltrafastError | None = None
        self._levels: KvLevelsChanged | None = None
        self._settled = asyncio.Event()  # first ready, or failed
        self._drained = asyncio.Event()
        self._is_closing = False

    # -- life ---------------------------------------------------------------------------------------------------------------

    async def start(self) -> EngineFacts:
        """Start the child and wait until it is ready. Once.

        Raises:
            ModelFileError, ConfigError: the child cannot serve this model, or not with these options.
            EngineFailedError: it died again and again while loading.
        """
        assert self._task is None, "started twice"
        self._load.begin(self._clock())
        # Owned here and awaited in close(): start and close may be called by different tasks, which a TaskGroup forbids.
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name="engine-supervisor")
        try:
            await self._settled.wait()
        except asyncio.CancelledError:
            await self.close(drain_timeout_s=0.0)
            raise
        if self._failure is not None:
            await self._task
            raise self._failure
        return self.facts

    async def close(self, drain_timeout_s: float = 0.0) -> None:
        """Refuse new requests, give the live ones `drain_timeout_s` to finish, abort the rest, and end the child. Idempotent."""
        self._is_closing = True
        if self._task is None:
            self._supervisor.state = EngineState.STOPPED
            return
        await self._drain(drain_timeout_s)
        for request_id in self._ledger.request_ids:
            self._abort(request_id)
        await self._drain(_ABORT_GRACE_S)
        self._supervisor.stop()
        if self._supervisor.pid is None:
            self._task.cancel()  # between two children
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not self._task.cancelled():
            self._task.result()

    async def _supervise(self) -> None:
        try:
            await self._supervisor.run()
        finally:  # whatever ended it: nobody waits for ever
            if self._supervisor.state is not EngineState.FAILED:
                self._supervisor.state = EngineState.STOPPED
            reason = FinishReason.ABORT if self._is_closing else FinishReason.ERROR
            self._observe(self._ledger.end_all(reason, self._end_message()))
            self._settled.set()
            self._drained.set()

    async def _drain(self, timeout_s: float) -> None:
        self._drained.clear()
        if not self._ledger or self._supervisor.state in (EngineState.FAILED, EngineState.STOPPED):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        except TimeoutError:
            return

    # -- requests -----------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> EngineStream:
        """Hand over a request; exactly one `RequestFinished` will come on its stream. Waits in here while the child restarts.

        Raises:
            UnavailableError: the engine is closing or has failed.
            OverloadedError: the child has not read `MAX_UNSENT_BYTES` of earlier requests yet.
        """
        if self._is_closing or self._supervisor.state in (EngineState.FAILED, EngineState.STOPPED):
            raise UnavailableError(self._end_message())
        if self._supervisor.unsent_bytes > MAX_UNSENT_BYTES:
            raise OverloadedError("the engine does not take new requests at the moment")
        stream = EngineStream(request.request_id, self._abort)
        self._ledger.add(request, stream)
        for listener in self._request_listeners:
            listener(request)
        self._send_unsent()
        return stream

    def looks_full(self, tier: ServiceTier, *, wholly: bool = False) -> bool:
        """Whether it is worth asking (`Request.is_inquiry`) before a request of this tier is prepared.

        As far as it is seen from here: by the last step that was reported, and what was submitted since then. `wholly`: only if
        the queue's whole bound seems to be reached.
        """
        if self._supervisor.state is not EngineState.READY:
            return False
        num_taken = self._stats.num_running if self._stats is not None else 0
        # Whom the step left waiting found no place; or, with places free, no KV.
        has_waiting = self._stats is not None and self._stats.num_waiting > 0
        num_free = 0 if has_waiting else max(0, self.facts.max_num_running - num_taken)
        bound = self._queue_bounds[tier]
        return self._ledger.num_unplaced(tier) >= num_free + (bound if wholly else bound // NEWCOMER_SHARE)

    def _send_unsent(self) -> None:
        if self._supervisor.state is not EngineState.READY:
            return
        was_idle = self._ledger.num_sent == 0
        requests = self._ledger.take_unsent()
        if not requests:
            return
        if was_idle:
            self._supervisor.pulse.work_arrived()
        for request in requests:
            self._supervisor.send(Submit(request))

    def _abort(self, request_id: str) -> None:
        if self._ledger.mark_aborted(request_id):
            self._supervisor.send(Abort([request_id]))
        else:
            self._observe(self._ledger.finish_unsent_aborts())

    # -- what is known ------------------------------------------------------------------------------------------------------

    @property
    def facts(self) -> EngineFacts:
        """What the child says about itself; kept while it is replaced.

        Raises:
            UnavailableError: it was never ready yet.
        """
        if self._facts is None:
            left_s = self._load.left_s(self._clock()) or 1.0
            raise UnavailableError(
                "the model is still loading", code="model_loading", retry_after_s=left_s, hint="wait for /health/ready"
            )
        return self._facts

    @property
    def levels(self) -> KvLevelsChanged | None:
        """KV outside the device, as the child last said; None while there is none."""
        return self._levels

    @property
    def device_kv(self) -> DeviceKv | None:
        """KV on the device after the last step; None while there is no engine that is ready."""
        return device_kv(self.facts, self._stats) if self._supervisor.state is EngineState.READY else None

    def clear_cache(self, *, with_disk: bool) -> None:
        """Have all KV forgotten that no running request needs. Does nothing while there is no child."""
        if self._supervisor.state is EngineState.READY:
            self._supervisor.send(ClearCache(with_disk))
            for listener in self._clear_listeners:
                listener()

    @property
    def state(self) -> EngineState:
        """As in `health`, for who asks often."""
        return self._supervisor.state

    def health(self) -> EngineHealth:
        """Answered from here: a busy or dead child cannot delay it."""
        num_sent = self._ledger.num_sent
        pulse = self._supervisor.pulse
        return EngineHealth(
            state=self._supervisor.state,
            last_step_age_s=pulse.last_step_age_s,
            has_work=len(self._ledger) > 0,
            is_stalled=self._supervisor.pid is not None and pulse.is_stalled(num_sent),
            num_restarts=self._supervisor.num_restarts,
            pid=self._supervisor.pid,
            ready_in_s=self._load.left_s(self._clock()),
        )

    @property
    def live_requests(self) -> Collection[LiveRequest]:
        """A look at the requests that have not ended, for observers, in the order in which they came."""
        return self._ledger.live_requests

    def add_listener(self, listener: Callable[[StepReport], None]) -> None:
        """Show every report to an observer, after the streams got it. It must be quick and must not raise."""
        self._listeners.append(listener)

    def add_request_listener(self, listener: Callable[[Request], None]) -> None:
        """Show every request to an observer when it is submitted. It must be quick and must not raise."""
        self._request_listeners.append(listener)

    def add_restart_listener(self, listener: Callable[[EngineRestarted], None]) -> None:
        """Tell an observer of every lost child. It must be quick and must not raise."""
        self._restart_listeners.append(listener)

    def add_clear_listener(self, listener: Callable[[], None]) -> None:
        """Tell an observer when the cache is being cleared: what it submits comes behind that. It must be quick and not raise."""
        self._clear_listeners.append(listener)

    # -- what the supervisor tells (ChildUser) ------------------------------------------------------------------------------

    @property
    def num_sent(self) -> int:
        return self._ledger.num_sent

    def on_loading(self, progress: Loading) -> None:
        self._load.note(progress, self._clock())
        if self._on_loading is not None:
            self._on_loading(progress)

    def on_ready(self, facts: EngineFacts) -> None:
        self._facts = facts
        self._load.end(self._clock())
        self._settled.set()
        self._send_unsent()

    def on_report(self, report: StepReport) -> None:
        ledger = self._ledger
        seen = ledger.apply(report)
        if report.levels is not None:
            self._levels = report.levels
        if report.stats is not None:
            self._stats = report.stats
        if seen is report:  # nothing ended
            for listener in self._listeners:
                listener(report)
        else:
            self._observe(seen)
        if self._may_hold_back:
            self._may_hold_back = ledger.is_holding_back
        if report.finished or self._may_hold_back:
            self._send_unsent()

    def on_lost(self, reason: str) -> None:
        self._levels = self._stats = None
        self._load.begin(self._clock())
        ended = self._ledger.child_lost()
        self._may_hold_back = True
        restarted = EngineRestarted(self._clock(), reason, len(self._ledger))
        for listener in self._restart_listeners:
            listener(restarted)
        self._observe(ended)

    def on_failed(self, error: UltrafastError) -> None:
        self._failure = error
        self._settled.set()

    def _observe(self, report: StepReport) -> None:
        if not self._ledger:
            self._drained.set()
        if (
            report.stats is None
            and report.levels is None
            and not (report.finished or report.tokens or report.scheduled or report.preempted)
        ):
            return
        for listener in self._listeners:
            listener(report)

    def _end_message(self) -> str:
        if self._failure is not None:
            return f"the engine has failed: {self._failure.message}"
        return "the server is shutting down"
