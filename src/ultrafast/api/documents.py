"""`GET /openapi.json`, `GET /docs`, `GET /`: what this server offers, made from the structs that it enforces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources

from ultrafast.api.context import ExtraRoute
from ultrafast.api.exchange import Exchange
from ultrafast.api.openapi import openapi_document

# The page is one file of ours and loads nothing but the document.
_CONTENT_POLICY = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)


class Documents:
    """The routes for people and generators. `extra_routes`: those of other layers."""

    def __init__(self, extra_routes: Iterable[ExtraRoute] = ()) -> None:
        self._openapi = openapi_document(tuple(extra_routes))

    async def openapi(self, exchange: Exchange) -> None:
        """Answer `GET /openapi.json`."""
        await exchange.respond(200, [], self._openapi)

    async def page(self, exchange: Exchange) -> None:
        """Answer `GET /docs`."""
        headers = [(b"content-security-policy", _CONTENT_POLICY), (b"x-content-type-options", b"nosniff")]
        await exchange.respond(200, headers, _page(), content_type=b"text/html; charset=utf-8")

    async def home(self, exchange: Exchange) -> None:
        """Answer `GET /`."""
        await exchange.respond(307, [(b"location", b"/docs")], b"", content_type=b"text/plain")


@cache
def _page() -> bytes:
    return resources.files("ultrafast.api").joinpath("docs.html").read_bytes()
