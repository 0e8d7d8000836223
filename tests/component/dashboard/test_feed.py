"""The feed through the edge: who may read it, how many, what a slow reader gets, and how it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.component.api.edge import listening, until
from tests.component.dashboard.served import Setup, make
from tests.unit.dashboard.events import report, stats

from ultrafast.api.auth import ApiKeys
from ultrafast.core.clock import ManualClock
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import Outcome

KEYS = ApiKeys([("me", "secret")])
FIGURES = ["/dashboard/state", "/dashboard/events"]


def client(setup: Setup) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=setup.app), base_url="http://test")  # type: ignore[arg-type]


class Watcher:
    """A connection to the feed over a plain socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, path: str = "/dashboard/events", method: str = "GET") -> Watcher:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: t\r\n\r\n".encode())
        return cls(reader, writer)

    async def head(self) -> str:
        return (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 20)).decode()

    async def frame(self) -> dict[str, Any]:
        while True:
            line = await asyncio.wait_for(self._reader.readline(), 20)
            assert line, "the feed has ended"
            if line.startswith(b"data: "):
                return json.loads(line[6:])

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(), 20)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def test_the_page_and_its_files_are_public_and_hold_no_figures() -> None:
    setup = make(keys=KEYS)
    async with client(setup) as http:
        page = await http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        script = await http.get("/dashboard/app.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        assert (await http.get("/dashboard/nothing.js")).status_code == 404
        assert (await http.get("/dashboard/../feed.py")).status_code == 404
        for text in (page.text, script.text):
            assert "test-model" not in text


@pytest.mark.parametrize("path", FIGURES)
async def test_figures_need_a_key_where_there_are_keys(path: str) -> None:
    async with client(make(keys=KEYS)) as http:
        assert (await http.get(path)).status_code == 401
        assert (await http.get(path, headers={"authorization": "Bearer wrong"})).status_code == 401


async def test_figures_with_a_key_and_without_keys_and_when_opened() -> None:
    async with client(make(keys=KEYS)) as http:
        assert (await http.get("/dashboard/state", headers={"authorization": "Bearer secret"})).status_code == 200
    for setup in (make(), make(keys=KEYS, is_dashboard_open=True)):
        async with client(setup) as http:
            answer = await http.get("/dashboard/state")
            assert answer.status_code == 200
            assert answer.json()["model"] == "test-model"


@pytest.mark.parametrize("path", ["/", *FIGURES])
async def test_nothing_can_be_written(path: str) -> None:
    async with client(make()) as http:
        assert (await http.post(path, json={})).status_code == 405


async def test_frames_follow_one_another() -> None:
    setup = make()
    setup.dashboard.on_report(report(step=stats(("aaaaaa", 0, 8))))
    async with listening(setup) as port:  # type: ignore[arg-type]
        watcher = await Watcher.connect(port)
        head = await watcher.head()
        assert "200 OK" in head
        assert "content-type: text/event-stream" in head
        first = await watcher.frame()
        assert [row[0] for row in first["steps"]] == [1]
        call = setup.recorder.begin_call(setup.dashboard.clock(), ServiceTier.FLEX)
        call.finish(Outcome.FAILED, setup.dashboard.clock())
        setup.dashboard.on_report(report(step=stats(("aaaaaa", 8, 8))))
        steps: list[int] = []
        while 2 not in steps:
            frame = await watcher.frame()
            steps += [row[0] for row in frame["steps"]]
        assert frame["tiers"][3]["outcomes"] == [0, 0, 0, 0, 0, 1]
        await watcher.close()
        await until(lambda: setup.feed.num_watchers == 0)


async def test_enough_is_enough() -> None:
    setup = make(max_watchers=2)
    async with listening(setup) as port:  # type: ignore[arg-type]
        watchers = [await Watcher.connect(port) for _ in range(2)]
        for watcher in watchers:
            await watcher.frame()
        refused = await Watcher.connect(port)
        assert "429" in await refused.head()
        await refused.close()
        await watchers[0].close()
        await until(lambda: setup.feed.num_watchers == 1)
        again = await Watcher.connect(port)
        assert "200 OK" in await again.head()
        await again.close()
        await watchers[1].close()
        await until(lambda: setup.feed.num_watchers == 0)


async def test_watchers_share_the_frames() -> None:
    setup = make()
    setup.dashboard.clock = ManualClock(100.0)  # one and the same tick all the time
    num_made = 0
    plain = setup.dashboard.frame

    def counted(*args: Any) -> Any:
        nonlocal num_made
        num_made += 1
        return plain(*args)

    setup.dashboard.frame = counted  # type: ignore[method-assign]
    async with listening(setup) as port:  # type: ignore[arg-type]
        watchers = [await Watcher.connect(port) for _ in range(8)]
        for watcher in watchers:
            for _ in range(3):
                await watcher.frame()
        for watcher in watchers:
            await watcher.close()
    assert num_made == 8 + 1  # everybody's first, and the one they share


async def test_a_watcher_that_reads_nothing_is_let_go() -> None:
    setup = make(interval_s=0.001, write_stall_timeout_s=0.3)
    for number in range(200):
        setup.dashboard.on_report(report(step=stats(("aaaaaa", 0, 8), step=number)))
    plain = setup.dashboard.frame
    setup.dashboard.frame = lambda looks, since=0: plain(looks)  # type: ignore[method-assign,assignment]
    async with listening(setup) as port:  # type: ignore[arg-type]
        watcher = await Watcher.connect(port)
        await until(lambda: setup.feed.num_watchers == 1)
        watcher.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: setup.feed.num_watchers == 0, 60)
        watcher.writer.transport.abort()


async def test_a_shutdown_ends_the_feed_at_once() -> None:
    setup = make()
    async with listening(setup) as port:  # type: ignore[arg-type]
        watcher = await Watcher.connect(port)
        await watcher.frame()
        setup.lifecycle.begin_drain()
        frame = await watcher.frame()
        while not frame["engine"]["is_draining"]:
            frame = await watcher.frame()
        await until(lambda: setup.feed.num_watchers == 0)
        await watcher.close()


async def test_a_head_request_does_not_watch() -> None:
    setup = make()
    async with client(setup) as http:
        assert (await http.head("/dashboard/events")).status_code == 200
    assert setup.feed.num_watchers == 0


async def test_a_watcher_counts_as_one_answer_of_its_route() -> None:
    setup = make()
    async with listening(setup) as port:  # type: ignore[arg-type]
        watcher = await Watcher.connect(port)
        await watcher.frame()
        await watcher.close()
        await until(lambda: setup.feed.num_watchers == 0)
        labels = {"route": "/dashboard/events", "status_class": "2xx"}
        await until(lambda: setup.metrics.registry.get_sample_value("ultrafast_http_responses_total", labels) == 1)
