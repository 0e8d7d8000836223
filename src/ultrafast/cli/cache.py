"""`ultrafast cache show|clear|warm`: the KV cache of a running server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import click

from ultrafast.cli.http_client import ServerClient
from ultrafast.cli.text_files import read_text_file
from ultrafast.config.api_keys import admin_key, read_api_keys
from ultrafast.core.errors import ConfigError


class _Clients(NamedTuple):
    """Of the first key, whose conversations share what is warmed; `operator`: of a key that may administer, if one is given."""

    first: ServerClient
    operator: ServerClient


@click.group()
@click.option("--url", envvar="ULTRAFAST_URL", default="http://127.0.0.1:8080", show_default=True, help="The running server.")
@click.option(
    "--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the API key; or set ULTRAFAST_API_KEY."
)
@click.pass_context
def cache(context: click.Context, url: str, api_key_file: Path | None) -> None:
    """Look at, clear or warm the KV cache of a running server."""
    keys = read_api_keys(str(api_key_file) if api_key_file else None, os.environ)
    context.obj = _Clients(ServerClient(url, keys[0].key if keys else None), ServerClient(url, admin_key(keys)))


@cache.command()
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(clients: _Clients, is_json: bool) -> None:
    """Show how much KV is on the device, in host memory and on disk."""
    view = clients.operator.get("/admin/cache")
    if is_json:
        click.echo(json.dumps(view, indent=2))
        return
    if not view["levels"]:
        click.echo("there is no engine at the moment")
    for level in view["levels"]:
        click.echo(_line(level))


@cache.command()
@click.option("--keep-disk", is_flag=True, help="Leave the files on disk.")
@click.pass_obj
def clear(clients: _Clients, keep_disk: bool) -> None:
    """Forget all KV that no running request needs."""
    clients.operator.post("/admin/cache/clear", {"disk": not keep_disk})
    click.echo("cleared")


@cache.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def warm(clients: _Clients, files: tuple[Path, ...]) -> None:
    """Compute the KV of system prompts, one per FILE, so that the first request that uses one finds it."""
    texts = {file: read_text_file(str(file), "system prompt") for file in files}
    for file, text in texts.items():
        if not text.strip():
            raise ConfigError(f"There is no system prompt in {file}.", hint="Name files that hold one each.")
    client = clients.first
    model = client.get("/v1/models")["data"][0]["id"]
    for file, text in texts.items():
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "."}]
        body = {"model": model, "messages": messages, "max_tokens": 1, "service_tier": "flex"}
        usage = client.post("/v1/chat/completions", body)["usage"]
        click.echo(f"{file}: {usage['prompt_tokens']} tokens")


def _line(level: dict[str, Any]) -> str:
    name = f"{level['level']:<6}"
    if not level["capacity_bytes"] and level["level"] != "device":
        return f"{name} off"
    used, capacity = level["used_bytes"] / 1e6, level["capacity_bytes"] / 1e6
    running = level.get("num_running_tokens")
    of_them = "" if running is None else f", {running} of them of running requests"
    return f"{name} {used:9.1f} of {capacity:9.1f} MB  {level['num_tokens']} tokens{of_them}"
