"""`GET /openapi.json`, `GET /docs`, `GET /`: what this server offers, made from the structs that it enforces."""

from __future__ import annotations

from functools import cache
from importlib import resources

from ultrafast.api.exchange import Exchange
from ultrafast.api.openapi import openapi_document

# The page is one file of ours and loads nothing but the document.
_CONTENT_POLICY = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)


class Documents:
    """The routes for people and generators."""

    async def openapi(self, exchange: Exchange) -> None:
        """Answer `GET /openapi.json`."""
        await exchange.respond(200, [], openapi_document())

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
