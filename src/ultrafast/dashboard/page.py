"""`GET /` and its files: static, a few kilobytes each, loaded once; they hold no figures and need no key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from ultrafast.dashboard.ports import Exchange, HeaderList

_CONTENT_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_FILES = ("style.css", "app.js", "charts.js", "feed.js", "format.js", "lanes.js", "playground.js", "tiers.js", "icon.svg")
# Everything comes from this server; nothing may be embedded, and the page cannot be framed.
_CONTENT_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

Handler = Callable[[Exchange], Awaitable[None]]


def page_routes() -> list[tuple[str, Handler]]:
    """(path, handler) of the page and its files."""
    return [("/", _handler("index.html")), *((f"/dashboard/{name}", _handler(name)) for name in _FILES)]


def _handler(name: str) -> Handler:
    body = resources.files("ultrafast.dashboard").joinpath("static", name).read_bytes()
    content_type = _CONTENT_TYPES[name.rpartition(".")[2]]

    async def handle(exchange: Exchange) -> None:
        headers: HeaderList = [(b"content-security-policy", _CONTENT_POLICY), (b"x-content-type-options", b"nosniff")]
        headers.append((b"referrer-policy", b"no-referrer"))
        await exchange.respond(200, headers, body, content_type=content_type)

    return handle
