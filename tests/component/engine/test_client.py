"""The client against real child processes that do what a script says."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import uvloop
from tests.component.engine.scripted_child import POISON, Script, expected_text
from tests.engine_facts import engine_facts

from ultrafast.core.clock import Clock, ManualClock
from ultrafast.core.errors import ConfigError, EngineFailedError, ModelFileError, UnavailableError
from ultrafast.core.events import Event, RequestFinished, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.engine.client import EngineClient
from ultrafast.engine.device_kv import DeviceKv
from ultrafast.engine.health import EngineRestarted, EngineState, RecoveryPolicy
from ultrafast.engine.messages import Loading, StepReport
from ultrafast.engine.options import EngineOptions
from ultrafast.engine.stream import EngineStream

COMMAND = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))
POLICY = RecoveryPolicy(watch_interval_s=0.05, backoff_s=0.01, max_backoff_s=0.05)


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, script: Script | None = None, policy: RecoveryPolicy = POLICY
) -> AsyncIterator[EngineClient]:
    client = make_client(monkeypatch, script, policy)
    await client.start()
    try:
        yield client
    finally:
        await client.close()
        assert client.health().pid is None


def make_client(
    monkeypatch: pytest.MonkeyPatch,
    script: Script | None = None,
    policy: RecoveryPolicy = POLICY,
    on_loading: Callable[[Loading], None] | None = None,
    clock: Clock = time.monotonic,
) -> EngineClient:
    monkeypatch.setenv("SCRIPTED_CHILD", msgspec.json.encode(script or Script()).decode())
    return EngineClient(EngineOptions("model.gguf"), clock, on_loading=on_loading, command=COMMAND, policy=policy)


def make_request(name: str, max_tokens: int = 5, prompt: tuple[int, ...] = ()) -> Request:
    return Request(name, prompt or (hash(name) % 997, 2), SamplingParams(max_tokens=max_tokens))


async def collect(stream: EngineStream) -> list[Event]:
    return [event async for batch in stream for event in batch]


def tokens_of(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, TokenProduced)]


def end_of(events: list[Event]) -> RequestFinished:
    ends = [event for event in events if isinstance(event, RequestFinished)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    return ends[0]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
        await asyncio.sleep(0.005)


def kill_child(client: EngineClient, how: signal.Signals = signal.SIGKILL) -> None:
    pid = client.health().pid
    assert pid is not None
    os.kill(pid, how)


async def test_a_request_streams_its_tokens_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as client:
        seen: list[StepReport] = []
        client.add_listener(seen.append)
        request = make_request("a")
        events = await collect(client.submit(request))
        assert tokens_of(events) == expected_text(request)
        assert end_of(events).reason is FinishReason.LENGTH
        assert [token.token for report in seen for token in report.tokens] == expected_text(request)
        assert client.health().has_work is False


async def test_progress_of_loading_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Loading] = []
    client = make_client(monkeypatch, on_loading=seen.append)
    facts = await client.start()
    await client.close()
    assert facts.build == "scripted"
    assert seen == [Loading("load", 0.5)]


async def test_a_slow_reader_gets_everything_in_fewer_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as client:
        request = make_request("slow", max_tokens=500)
        stream = client.submit(request)
        await until(lambda: client.num_sent == 0)
        batches = [batch async for batch in stream]
        assert len(batches) == 1
        assert tokens_of(list(batches[0])) == expected_text(request)


async def test_abort_ends_a_running_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, Script(step_s=0.005)) as client:
        stream = client.submit(make_request("a", max_tokens=100_000))
        await anext(stream)
        stream.abort()
        stream.abort()
        assert end_of(await collect(stream)).reason is FinishReason.ABORT
        stream.abort()


async def test_leaving_the_stream_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, Script(step_s=0.005)) as client:
        async with client.submit(make_request("a", max_tokens=100_000)) as stream:
            await anext(stream)
        await until(lambda: client.num_sent == 0)
        assert end_of(await collect(stream)).reason is FinishReason.ABORT


async def test_a_request_the_engine_refuses_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as client:
        end = end_of(await collect(client.submit(make_request("bad", prompt=(-1,)))))
        assert (end.reason, end.error) == (FinishReason.REJECT, "a negative token id")


class Gate:
    """Steps of the child hang until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def open(self) -> None:
        self.path.unlink()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


async def kill_in_the_middle(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """8 streams, all in the middle of their text when the child is killed."""
    async with running(monkeypatch, Script(stuck_file=str(gate.path), stuck_from=20, min_num_requests=8)) as client:
        restarts: list[EngineRestarted] = []
        client.add_restart_listener(restarts.append)
        requests = [make_request(f"r{i}", max_tokens=60, prompt=(i + 1, i)) for i in range(8)]
        streams = [client.submit(request) for request in requests]
        first = [await read_tokens(stream, 20) for stream in streams]
        kill_child(client)
        await until(lambda: client.health().state is EngineState.RESTARTING)
        assert client.health().has_work, "all eight wait for the next child"
        gate.open()
        for request, begun, stream in zip(requests, first, streams, strict=True):
            events = await collect(stream)
            assert begun + tokens_of(events) == expected_text(request)
            assert end_of(events).reason is FinishReason.LENGTH
        assert [(lost.reason, lost.num_live_requests) for lost in restarts] == [("the engine process was ended by SIGKILL", 8)]
        assert client.health().num_restarts == 1


async def read_tokens(stream: EngineStream, count: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += tokens_of(list(await anext(stream)))
    assert len(tokens) == count
    return tokens


async def test_all_streams_go_on_after_kill_9(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    await kill_in_the_middle(monkeypatch, gate)


def test_all_streams_go_on_after_kill_9_on_uvloop(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    uvloop.run(kill_in_the_middle(monkeypatch, gate))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
async def test_no_descriptor_and_no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count_open()
    async with running(monkeypatch) as client:
        pids = {client.health().pid}
        for num_kills in range(1, 4):
            kill_child(client)
            await until(lambda: client.health().num_restarts == num_kills)  # noqa: B023 - awaited here
            await until(lambda: client.health().state is EngineState.READY)
            pids.add(client.health().pid)
    assert len(pids) == 4
    assert count_open() == before
    for pid in pids:  # these only: other tests may have servers of their own running
        assert pid is not None
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it does not block


async def test_requests_submitted_while_restarting_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as client:
        lost = asyncio.Event()
        client.add_restart_listener(lambda _: lost.set())
        kill_child(client)
        await lost.wait()
        assert client.health().state is EngineState.RESTARTING
        request = make_request("patient")
        stream = client.submit(request)
        aborted = client.submit(make_request("impatient"))
        aborted.abort()
        assert end_of(await collect(aborted)).reason is FinishReason.ABORT
        assert tokens_of(await collect(stream)) == expected_text(request)


@pytest.mark.parametrize("at_output", [0, 7])
async def test_a_poisonous_request_fails_alone(monkeypatch: pytest.MonkeyPatch, at_output: int) -> None:
    async with running(monkeypatch, Script(step_s=0.002, max_num_running=4)) as client:
        poison = make_request("poison", max_tokens=50, prompt=(POISON, at_output))
        bystanders = [make_request(f"r{i}", max_tokens=40 + 10 * i, prompt=(i + 1, i)) for i in range(7)]
        requests = [*bystanders[:3], poison, *bystanders[3:]]
        results = await asyncio.gather(*[collect(client.submit(request)) for request in requests])
        for request, events in zip(requests, results, strict=True):
            end = end_of(events)
            if request is poison:
                assert end.reason is FinishReason.ERROR
                assert end.error is not None
                assert "crashed" in end.error
                assert tokens_of(events) == expected_text(request)[:at_output]
            else:
                assert end.reason is FinishReason.LENGTH, end
                assert tokens_of(events) == expected_text(request)
        late = make_request("late")
        assert tokens_of(await collect(client.submit(late))) == expected_text(late)


async def test_a_lone_poisonous_request_fails_after_three_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as client:
        end = end_of(await collect(client.submit(make_request("poison", prompt=(POISON, 0)))))
        assert end.error == "the engine crashed 3 times while running this request"
        await until(lambda: client.health().state is EngineState.READY)
        assert client.health().num_restarts == 3


async def test_a_stopped_child_counts_as_stalled_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RecoveryPolicy(watch_interval_s=0.05, silence_after_s=1.5)
    async with running(monkeypatch, Script(step_s=0.01), policy) as client:
        request = make_request("a", max_tokens=20)
        stream = client.submit(request)
        kill_child(client, signal.SIGSTOP)
        await until(lambda: client.health().is_stalled)
        kill_child(client, signal.SIGCONT)
        await until(lambda: not client.health().is_stalled)
        assert tokens_of(await collect(stream)) == expected_text(request)
        assert client.health().num_restarts == 0


async def test_a_hung_step_is_a_stall_and_then_a_restart(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    clock = SkewedClock()
    client = make_client(monkeypatch, Script(stuck_file=str(gate.path)), clock=clock)
    restarts: list[str] = []
    client.add_restart_listener(lambda restarted: restarts.append(restarted.reason))
    await client.start()
    request = make_request("a")
    stream = client.submit(request)
    assert not client.health().is_stalled
    clock.skew_s += POLICY.stall_after_s + 1
    assert client.health().is_stalled
    assert client.health().state is EngineState.READY
    clock.skew_s += POLICY.hang_restart_s
    await until(lambda: bool(restarts))
    gate.open()
    assert tokens_of(await collect(stream)) == expected_text(request)
    assert "no step" in restarts[0] or "no sign of life" in restarts[0]
    await client.close()


class SkewedClock:
    """The real clock, with jumps."""

    def __init__(self) -> None:
        self.skew_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skew_s


async def test_a_model_that_cannot_be_served_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(monkeypatch, Script(load="fail"))
    with pytest.raises(ModelFileError, match="the model file is cut") as caught:
        await client.start()
    assert caught.value.hint == "fetch it again"
    assert client.health().state is EngineState.FAILED
    with pytest.raises(UnavailableError):
        client.submit(make_request("a"))
    await client.close()


async def test_a_setting_that_cannot_work_comes_back_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(monkeypatch, Script(load="setting"))
    with pytest.raises(ConfigError, match="the pool is too large") as caught:
        await client.start()
    error = caught.value
    assert (error.code, error.param, error.hint) == ("context_failed", "engine.kv_capacity_tokens", "lower it")
    await client.close()


async def test_a_child_that_always_crashes_while_loading_fails_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counter = tmp_path / "loads"
    client = make_client(monkeypatch, Script(fail_loads_after=0, counter_file=str(counter)))
    with pytest.raises(EngineFailedError, match=r"in 3 starts.*SIGABRT"):
        await client.start()
    assert counter.read_text() == "..."
    await client.close()


async def test_live_requests_end_when_no_child_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = Script(step_s=0.005, fail_loads_after=1, counter_file=str(tmp_path / "loads"))
    async with running(monkeypatch, script) as client:
        stream = client.submit(make_request("a", max_tokens=100_000))
        await anext(stream)
        kill_child(client)
        end = end_of(await collect(stream))
        assert end.reason is FinishReason.ERROR
        assert end.error is not None
        assert "did not become ready in 3 starts" in end.error
        assert client.health().state is EngineState.FAILED


async def test_close_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(monkeypatch, Script(step_s=0.005))
    await client.start()
    request = make_request("a", max_tokens=40)
    stream = client.submit(request)
    await client.close(drain_timeout_s=60)
    assert tokens_of(await collect(stream)) == expected_text(request)
    with pytest.raises(UnavailableError):
        client.submit(make_request("late"))
    await client.close()


async def test_close_aborts_what_does_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(monkeypatch, Script(step_s=0.005))
    await client.start()
    stream = client.submit(make_request("a", max_tokens=1_000_000))
    await anext(stream)
    await client.close(drain_timeout_s=0.05)
    end = end_of(await collect(stream))
    assert (end.reason, end.error) == (FinishReason.ABORT, None)  # by the child, which counted its tokens


async def test_close_ends_a_stopped_child(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RecoveryPolicy(watch_interval_s=0.05, exit_grace_s=0.2)
    client = make_client(monkeypatch, policy=policy)
    await client.start()
    pid = client.health().pid
    kill_child(client, signal.SIGSTOP)
    await client.close()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_close_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(monkeypatch)
    starting = asyncio.get_running_loop().create_task(client.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert client.health().state is EngineState.STOPPED


@pytest.mark.parametrize(
    ("num_running", "num_waiting", "num_unplaced", "is_worth"),
    [(0, 0, 3, False), (0, 0, 4, True), (2, 0, 1, False), (2, 0, 2, True), (0, 1, 1, False), (0, 1, 2, True)],
)
async def test_it_is_worth_asking_first_once_a_quarter_of_the_queue_is_taken(
    num_running: int, num_waiting: int, num_unplaced: int, is_worth: bool
) -> None:
    """Two places, and a queue of eight; what was submitted since the last step counts. Who was left waiting lacks KV, if not
    a place."""
    policies = tuple(replace(policy, max_num_waiting=8) for policy in DEFAULT_POLICIES)
    client = EngineClient(EngineOptions("none", tiers=policies))
    assert client.looks_full(ServiceTier.DEFAULT) is False, "there is no engine yet"
    client._supervisor.state = EngineState.READY
    client._facts = engine_facts(max_num_running=2)
    client._stats = StepFinished(*[0] * 13)._replace(num_running=num_running, num_waiting=num_waiting)
    for i in range(num_unplaced):
        client._ledger.add(make_request(f"r{i}"), EngineStream(f"r{i}", lambda _: None))
    assert client.looks_full(ServiceTier.DEFAULT) is is_worth
    assert client.looks_full(ServiceTier.DEFAULT, wholly=True) is False
    assert client.looks_full(ServiceTier.FLEX) is False


async def test_the_device_holds_what_the_last_step_said_and_nothing_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(monkeypatch)
    assert client.device_kv is None, "there is no engine yet"
    await client.start()
    facts = client.facts
    empty = DeviceKv(0, 0, facts.kv_capacity_tokens, facts.state_bytes_per_token)
    assert client.device_kv == empty
    stats = StepFinished(*[0] * 13)._replace(num_kv_tokens_running=5, num_kv_tokens_cached=7)
    client.on_report(StepReport(stats=stats))
    assert client.device_kv == empty._replace(num_running_tokens=5, num_cached_tokens=7)
    kill_child(client)
    await until(lambda: client.health().num_restarts == 1 and client.health().state is EngineState.READY)
    assert client.device_kv == empty
    await client.close()


async def test_while_it_loads_it_says_how_long_that_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(100.0)
    client = make_client(monkeypatch, clock=clock)
    client._load.begin(clock())
    for fraction in (0.0, 0.2):
        client.on_loading(Loading("weights", fraction))
        clock.advance(2.0)
    assert client.health().ready_in_s == pytest.approx(6.0)
    with pytest.raises(UnavailableError) as caught:
        _ = client.facts
    assert caught.value.retry_after_s == pytest.approx(6.0)
    client.on_ready(engine_facts())
    assert client.health().ready_in_s is None
    client.on_lost("it crashed")
    assert client.health().ready_in_s == pytest.approx(4.0), "as long as the load before"
