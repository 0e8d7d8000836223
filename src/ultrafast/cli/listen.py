"""What to say about the address that the server listens on."""

from __future__ import annotations

import ipaddress

import click


def url_of(host: str, port: int) -> str:
    """The URL under which this machine reaches the server; a wildcard address becomes the loopback one."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def warn_if_open(host: str, has_keys: bool) -> None:
    """Say so on stderr when anybody on the network may call."""
    if not has_keys and not ipaddress.ip_address(host).is_loopback:
        click.echo("warning: no API keys, and not only this machine can reach the port: anybody there may use it", err=True)
        click.echo("hint: set server.api_key_file (--api-key-file FILE)", err=True)
