"""Runs on servers of our own: in turns, and none is left, whatever happens. The servers here are scripted."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from tests.component.bench.truth_server import running

from ultrafast.bench.compare.conditions import ConditionsDifferError
from ultrafast.bench.compare.configurations import Configuration
from ultrafast.bench.compare.interleave import run_pairs
from ultrafast.bench.compare.own_servers import OwnServers
from ultrafast.bench.own_server import ReadyLine, ServerStartError
from ultrafast.bench.session import BenchSpec
from ultrafast.bench.session import measure as measure_run
from ultrafast.bench.workload import WorkloadSpec
from ultrafast.cli.compare_live import served
from ultrafast.config.keys import SETTING_KEYS

EFFECTIVE = {name: key.default for name, key in SETTING_KEYS.items()}
SPEC = BenchSpec(
    name="small",
    url="http://127.0.0.1:9",
    model="truth",
    num_warmups=0,
    concurrency=1,
    workload=WorkloadSpec(num_requests=2, input_len="8", output_len="4", arrival="closed", seed=3),
)


def side(**settings):
    values = {name.replace("__", "."): value for name, value in settings.items()}
    return Configuration((), None, values, EFFECTIVE | values, {})


class Scripted:
    """Stands in for `OwnServer`: a truth server, and a note of its start and end."""

    def __init__(self, log, name, url, facts):
        self._log, self._name = log, name
        self.stack = AsyncExitStack()
        values = {"flash_attention": True, "kv_capacity_tokens": 4096, "num_threads": 2, "libllama": "b1"} | facts
        self.ready = ReadyLine(url=url, model="truth", **values)

    async def stop(self):
        self._log.append(f"stop {self._name}")
        await self.stack.aclose()


class Starter:
    """Starts scripted servers; `facts` by name of the served model, `failing` does not start."""

    def __init__(self, facts=None, failing=None):
        self.log, self.servers = [], {}
        self._facts, self._failing = facts or {}, failing

    async def __call__(self, config_file, settings, env):
        name = settings["model.served_name"]
        if name == self._failing:
            raise ServerStartError("It does not start.")
        stack = AsyncExitStack()
        server = await stack.enter_async_context(running(scale=0.0))
        self.servers.setdefault(name, []).append(server)
        self.log.append(f"start {name}")
        scripted = Scripted(self.log, name, server.url, self._facts.get(name, {}))
        scripted.stack = stack
        return scripted


async def compare(starter, num_pairs=2, measure=None, **options):
    async def real(side, spec):
        starter.log.append(f"run {side}")
        return await measure_run(spec)

    a, b = side(model__served_name="one"), side(model__served_name="two")
    servers = OwnServers(a, b, {}, start=starter, **options)
    try:
        return await run_pairs(SPEC, SPEC, num_pairs, served(servers, measure or real))
    finally:
        await servers.stop()


async def test_both_are_up_before_the_first_run_and_each_run_goes_to_its_own():
    starter, told = Starter(), []
    a, b = await compare(starter, on_start=lambda side, configuration: told.append(side))
    assert starter.log == ["start one", "start two", "run a", "run b", "run b", "run a", "stop two", "stop one"]
    assert told == ["a", "b"]
    (one,), (two,) = starter.servers["one"], starter.servers["two"]
    assert {run.record.scenario.url for run in a} == {one.url}
    assert {run.record.scenario.url for run in b} == {two.url}
    assert all(request.is_ok for run in (*a, *b) for request in run.requests)


async def test_one_at_a_time():
    starter = Starter()
    await compare(starter, is_restarting=True)
    once = [["start one", "run a", "stop one"], ["start two", "run b", "stop two"]]
    assert starter.log == [*once[0], *once[1], *once[1], *once[0]]


@pytest.mark.parametrize("is_restarting", [False, True])
async def test_an_error_in_a_run_stops_what_was_started(is_restarting):
    async def fail(side, spec):
        raise RuntimeError(side)

    starter = Starter()
    with pytest.raises(RuntimeError, match="a"):
        await compare(starter, measure=fail, is_restarting=is_restarting)
    assert sorted(starter.log) == (
        ["start one", "stop one"] if is_restarting else ["start one", "start two", "stop one", "stop two"]
    )


async def test_a_cancelled_comparison_stops_what_was_started():
    begun = asyncio.Event()

    async def wait(side, spec):
        begun.set()
        await asyncio.Event().wait()

    starter = Starter()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(compare(starter, measure=wait))
        await begun.wait()
        task.cancel()
    assert sorted(starter.log) == ["start one", "start two", "stop one", "stop two"]


async def test_when_the_second_does_not_start_the_first_is_stopped():
    starter = Starter(failing="two")
    with pytest.raises(ServerStartError):
        await compare(starter)
    assert starter.log == ["start one", "stop one"]


@pytest.mark.parametrize("is_restarting", [False, True])
async def test_servers_that_differ_in_more_than_their_settings_are_refused(is_restarting):
    starter = Starter(facts={"two": {"kv_capacity_tokens": 1024}})
    with pytest.raises(ConditionsDifferError, match=r"kv_capacity_tokens \(A 4096, B 1024\)"):
        await compare(starter, is_restarting=is_restarting)
    assert starter.log.count("stop one") == starter.log.count("stop two") == 1
    assert starter.log.count("run b") == 0
