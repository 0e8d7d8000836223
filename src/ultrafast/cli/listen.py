"""Takes the TCP port before anything else starts, so that a busy one costs a second and not a model load."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

import click

from ultrafast.core.errors import UltrafastError

_BACKLOG = 2048


class ListenError(UltrafastError):
    """The address cannot be listened on."""

    code = "cannot_listen"


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket; port 0 takes a free one.

    Raises:
        ListenError: busy, forbidden or unknown address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(
            f"{host!r} is not an address of this machine: {error.strerror}.", hint="Use --host 127.0.0.1 or 0.0.0.0."
        ) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _explain(host, port, error) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL under which the socket is reached; a wildcard address becomes the loopback one."""
    host, port = sock.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def warn_if_open(sock: socket.socket, has_keys: bool) -> None:
    """Say so when anybody on the network may call."""
    if not has_keys and not ipaddress.ip_address(sock.getsockname()[0]).is_loopback:
        click.echo("warning: no API keys, and not only this machine can reach the port: anybody there may use it", err=True)
        click.echo("hint: set server.api_key_file (--api-key-file FILE)", err=True)


def _explain(host: str, port: int, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"Port {port} on {host} is in use by another process.",
            hint=f"Stop that one (`ss -ltnp 'sport = :{port}'` names it) or use --port.",
        )
    if error.errno == errno.EACCES:
        return ListenError(f"Port {port} needs privileges.", hint="Use a port from 1024 on, behind a proxy if need be.")
    if error.errno == errno.EADDRNOTAVAIL:
        return ListenError(f"{host} is not an address of this machine.", hint="Use --host 127.0.0.1 or 0.0.0.0.")
    return ListenError(f"Cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}.")
