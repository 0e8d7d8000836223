"""The page in a real browser: it shows the feed's figures, needs nobody else, hides nothing at phone width, and races."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.component.api.edge import listening, until
from tests.component.api.fake_service import Call, completed, started
from tests.component.dashboard.chromium import Page, browser_page
from tests.component.dashboard.served import Setup, make
from tests.unit.dashboard.events import live, report, stats

from ultrafast.api.auth import ApiKeys
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.health import EngineRestarted
from ultrafast.observe.call import LatencyParts
from ultrafast.observe.metrics import Outcome
from ultrafast.serving.contract import ChoiceFinished, Delta, ServingEvent

pytestmark = pytest.mark.needs_program("chromium")


@asynccontextmanager
async def opened(setup: Setup, **options: Any) -> AsyncIterator[tuple[Page, str]]:
    """The page in a browser. At its end nothing may have gone wrong in it, and it may have asked nobody but its server."""
    async with listening(setup) as port, browser_page() as page:  # type: ignore[arg-type]
        url = f"http://127.0.0.1:{port}/"
        await page.open(url, **options)
        yield page, url
        assert [one for one in page.requests if not one.startswith(url)] == []
        await page.leave()
        await until(lambda: setup.feed.num_watchers == 0)


def busy(setup: Setup) -> None:
    """A server in the middle of something."""
    now = setup.dashboard.clock()
    call = setup.recorder.begin_call(now - 1.0, ServiceTier.ULTRAFAST)
    call.on_delta(0, 1, now - 0.9)
    call.on_delta(0, 1, now - 0.8)
    call.finish(Outcome.COMPLETED, now, LatencyParts(0.1, 0.2, 0.3, 0.4))
    requests = {"aaaaaa": "decodes", "bbbbbb": "prefills", "cccccc": "waits"}
    setup.live += [live(name, num_output=name == "aaaaaa") for name in requests]
    setup.dashboard.on_report(report(scheduled=("aaaaaa", "bbbbbb")))
    setup.dashboard.on_report(report(tokens=("aaaaaa",), step=stats(("bbbbbb", 32, 16), num_decode_sequences=1)))
    setup.dashboard.on_restart(EngineRestarted(now, "killed by signal 9", 0))
    setup.dashboard.on_report(report(scheduled=("aaaaaa", "bbbbbb")))


async def slow_answer(call: Call) -> AsyncGenerator[ServingEvent, None]:
    """Less urgent tiers begin later."""
    tier = call.options.requested_tier or ServiceTier.DEFAULT
    await asyncio.sleep(0.15 * tier.rank)
    yield started(call)
    for word in ("Hello", " <b>world</b>"):
        yield Delta(0, word, num_tokens=1)
        await asyncio.sleep(0.01)
    yield ChoiceFinished(0, "stop")
    yield completed(2)


async def test_it_shows_the_figures() -> None:
    setup = make()
    busy(setup)
    async with opened(setup) as (page, _):
        await page.wait_for("document.getElementById('state').innerText === 'idle'")
        assert await page.text("#model") == "test-model"
        row = await page.text("#latency table tr.tier-ultrafast")
        assert row.split("\t")[-2:] == ["200 ms", "100 %"]
        lanes = (await page.text("#lanes")).split("\n")
        for name, state in {"aaaaaa": "decodes", "bbbbbb": "prefills", "cccccc": "waits"}.items():
            assert state in lanes[lanes.index(name) :][:4]
        assert "prompt 32–48 of 100" in lanes
        assert "2 running, 1 waiting" in await page.text("#lanes-line")
        assert "killed by signal 9" in await page.text("#alert")
        assert "10 blocks of 32 tokens" in await page.text("#kv-line")
        assert "queue 200 ms" in (await page.text("#parts")).replace("\n", " ")
        assert (await page.text("#outcomes tr.tier-ultrafast")).split("\t")[1] == "1 / 1"
        assert page.problems == []


async def test_a_key_opens_the_figures_and_is_stored_nowhere() -> None:
    setup = make(keys=ApiKeys([("me", "secret")]))
    async with opened(setup) as (page, _):
        await page.wait_for("!document.getElementById('unlock').hidden")
        assert await page.text("#state") == "locked"
        await page.fill("#unlock-key", "wrong")
        await page.evaluate("document.getElementById('unlock-key').focus()")
        await page.press("Enter")
        await page.wait_for("document.getElementById('unlock-error').innerText !== ''")
        await page.fill("#unlock-key", "secret")
        await page.press("Enter")
        await page.wait_for("document.getElementById('unlock').hidden && document.getElementById('state').innerText === 'idle'")
        stored = "[localStorage.length, sessionStorage.length, document.cookie, location.href.includes('secret')]"
        assert await page.evaluate(stored) == [0, 0, "", False]


async def test_the_race() -> None:
    setup = make({"m": slow_answer})
    async with opened(setup) as (page, _):
        await page.fill("#prompt", "a secret prompt")
        await page.evaluate("document.getElementById('start').focus()")
        await page.press("Enter")
        await page.wait_for("document.getElementById('race-status').innerText.startsWith('First token:')")
        places = await page.evaluate("[...document.querySelectorAll('.track .place')].map((node) => node.innerText)")
        assert places == ["1st", "2nd", "3rd", "4th"]
        answers = await page.evaluate("[...document.querySelectorAll('.answer-text')].map((node) => node.innerText)")
        assert answers == ["Hello <b>world</b>"] * 4  # text, never markup
        legend = await page.text(".answers article .legend")
        assert all(part in legend for part in ("network", "queue", "compute", "rest of the server"))
        notes = await page.evaluate(
            "[...document.querySelectorAll('.answers article > p:last-child')].map((node) => node.innerText)"
        )
        parts = r"queue \S+ \S?s, compute \S+ \S?s, rest of the server \S+ \S?s"
        told = re.compile(rf"2 tokens in .*, served as \w+\. By the server's clock: {parts}\.")
        assert [bool(told.fullmatch(note)) for note in notes] == [True] * 4, notes
        frame = await page.evaluate("fetch('dashboard/state').then((answer) => answer.text())")
        assert "secret prompt" not in frame
        assert page.problems == []
    assert [call.options.requested_tier for call in setup.service.calls] == list(ServiceTier)
    assert {call.options.is_cached for call in setup.service.calls} == {False}


async def test_a_failing_call_is_told() -> None:
    setup = make(max_body_bytes=1024)
    async with opened(setup) as (page, _):
        await page.fill("#prompt", "long " * 500)
        await page.evaluate("document.getElementById('race').requestSubmit()")
        await page.wait_for("document.getElementById('race-status').innerText === 'No answer.'")
        assert "Failed: " in await page.text("#race-result article")


@pytest.mark.parametrize("width", [320, 390])
async def test_nothing_overflows_on_a_phone(width: int) -> None:
    setup = make({"m": slow_answer})
    busy(setup)
    async with opened(setup, width=width, height=800, scheme="dark", is_phone=True) as (page, _):
        await page.wait_for("document.getElementById('state').innerText === 'idle'")
        await page.evaluate("document.getElementById('race').requestSubmit()")
        await page.wait_for("document.getElementById('race-status').innerText.startsWith('First token:')")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


async def test_everything_has_a_name_and_can_be_reached() -> None:
    setup = make()
    busy(setup)
    async with opened(setup) as (page, _):
        await page.wait_for("document.getElementById('state').innerText === 'idle'")
        nodes = await page.accessibility_nodes()
        roles = {"button", "checkbox", "textbox", "spinbutton", "image", "img", "link", "table", "region"}
        named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
        assert [role for role, name in named if role in roles and not name] == []
        assert {"button", "checkbox", "textbox", "table", "link"} <= {role for role, _ in named}
        await page.press("Tab")
        assert await page.evaluate("document.activeElement.innerText") == "Skip to the figures"
        await page.press("Tab")
        assert await page.evaluate("document.activeElement.id") == "pause"
        await page.press("Enter")
        assert await page.text("#state") == "paused"
        await until(lambda: setup.feed.num_watchers == 0)
