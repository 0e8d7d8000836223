"""Debian's Chromium, driven by Playwright: a page, what it loaded and what went wrong in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, ConsoleMessage, async_playwright
from playwright.async_api import Page as Tab
from tests.programs import find_program

WAIT_TIMEOUT_S = 60
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


class Page:
    """One tab, which `open` makes as it is asked to look.

    Attributes:
        requests: addresses that it asked for. problems: exceptions, and errors on its console.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def open(
        self, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light", is_phone: bool = False
    ) -> None:
        context = await self._browser.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=2 if is_phone else 1,
            is_mobile=is_phone,
            color_scheme="dark" if scheme == "dark" else "light",
        )
        context.set_default_timeout(1000 * WAIT_TIMEOUT_S)
        self.tab: Tab = await context.new_page()
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", self._hear)
        await self.tab.goto(url)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    async def leave(self) -> None:
        """Let go of the server: it must not wait for this page."""
        await self.tab.goto("about:blank")

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        return await self.tab.evaluate(expression)

    async def wait_for(self, expression: str) -> None:
        """Wait until the expression is truthy. The limit only ends a test that fails.

        Asked again and again from outside: the page's content policy forbids Playwright's way, which evaluates text in it.
        """
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not await self.evaluate(expression):  # noqa: ASYNC110 - the page tells nobody
                await asyncio.sleep(0.05)

    async def text(self, selector: str) -> str:
        return await self.tab.locator(selector).first.inner_text()

    async def fill(self, selector: str, value: str) -> None:
        await self.tab.locator(selector).fill(value)

    async def press(self, key: str) -> None:
        await self.tab.keyboard.press(key)

    async def accessibility_nodes(self) -> list[dict[str, Any]]:
        """What a screen reader is told, as Chromium's accessibility tree has it."""
        session = await self.tab.context.new_cdp_session(self.tab)
        nodes: list[dict[str, Any]] = (await session.send("Accessibility.getFullAXTree"))["nodes"]
        return nodes


@asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    """A new browser with an empty profile."""
    chromium = find_program("chromium")
    assert chromium is not None, "no Chromium here"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=[*_FLAGS])
        try:
            yield Page(browser)
        finally:
            await browser.close()
