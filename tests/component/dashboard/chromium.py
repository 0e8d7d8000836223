"""Drives Debian's Chromium through its DevTools protocol: just enough to open a page, look at it, click and take a picture.

The browser is a process of its own with an empty profile; `Page.requests` and `Page.problems` tell what it loaded and what
went wrong in it.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tests.programs import find_program

START_TIMEOUT_S = 60
WAIT_TIMEOUT_S = 60
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def listen(self) -> None:
        """Read what the browser says until it ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif said["method"] == "Network.requestWillBeSent":
                self.requests.append(said["params"]["request"]["url"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.problems.append(said["params"]["entry"]["text"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        said = await asyncio.wait_for(answer, WAIT_TIMEOUT_S)
        assert "error" not in said, said["error"]
        result: dict[str, Any] = said["result"]
        return result

    async def open(
        self, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light", is_phone: bool = False
    ) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        scale = 2 if is_phone else 1
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), WAIT_TIMEOUT_S)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        said = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def wait_for(self, expression: str) -> Any:
        """Wait until the expression is truthy. The limit only ends a test that fails."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not (value := await self.evaluate(expression)):  # noqa: ASYNC110 - the page tells nobody
                await asyncio.sleep(0.05)
        return value

    async def text(self, selector: str) -> str:
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def fill(self, selector: str, value: str) -> None:
        """Type into a field, as far as the page can tell."""
        await self.evaluate(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(value)};"
            "for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true})) })()"
        )

    async def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key, "")
        code = {"Enter": 13, "Tab": 9}[key]
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    async def screenshot(self, **options: Any) -> bytes:
        """A picture; see `Page.captureScreenshot` of the protocol for options."""
        said = await self.call("Page.captureScreenshot", **options)
        return base64.b64decode(said["data"])


@asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    """A new browser with one empty tab."""
    chromium = find_program("chromium")
    assert chromium is not None, "no Chromium here"
    profile = Path(tempfile.mkdtemp(prefix="chromium-"))
    process = await asyncio.create_subprocess_exec(
        chromium, *_FLAGS, f"--user-data-dir={profile}", "about:blank",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _debugging_port(profile)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (target,) = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                async with asyncio.TaskGroup() as group:
                    listener = group.create_task(page.listen())
                    yield page
                    listener.cancel()
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


async def _debugging_port(profile: Path) -> int:
    file = profile / "DevToolsActivePort"
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            lines = file.read_text().split() if file.exists() else []
            if lines:
                return int(lines[0])
            await asyncio.sleep(0.05)
