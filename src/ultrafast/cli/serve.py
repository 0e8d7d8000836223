"""`ultrafast serve`: check everything that can be checked, then start; one line on stdout when ready."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import click

from ultrafast.api.server import run
from ultrafast.cli.listen import url_of, warn_if_open
from ultrafast.cli.loading import LoadingDisplay
from ultrafast.cli.options import load_from_options, settings_options
from ultrafast.cli.text_files import read_text_file
from ultrafast.config.api_keys import read_api_keys
from ultrafast.config.settings import Settings
from ultrafast.engine.options import EngineFacts
from ultrafast.engine.settle import settle
from ultrafast.models.resolve import resolve_model
from ultrafast.observe.logs import set_up_logging
from ultrafast.wiring import Callbacks, Inputs, build

_log = logging.getLogger("ultrafast.server")


@click.command()
@click.option("--json", "is_json", is_flag=True, help="Print the ready line as JSON.")
@settings_options
def serve(is_json: bool, **options: Any) -> int:
    """Start the server. Prints one line on stdout when it is ready; SIGTERM or Ctrl-C drains and stops it."""
    settings = load_from_options(options).settings
    inputs = Inputs(
        settings=settings,
        api_keys=read_api_keys(settings.server.api_key_file, os.environ),
        chat_template=_read_template(settings),
        pinned_prompts=tuple(_read_prompt(prompt) for prompt in settings.model.pinned_prompts),
        model=resolve_model(settings.model.path_or_name),
    )
    set_up_logging(settings.logging.level, settings.logging.format)
    return _run(inputs, is_json)


def _run(inputs: Inputs, is_json: bool) -> int:
    display = LoadingDisplay()
    server = inputs.settings.server
    urls: list[str] = []
    facts: list[EngineFacts] = []

    def announce() -> None:
        # The engine may be ready before or after the port is open: whichever comes second says so.
        if urls and facts:
            display.close()
            click.echo(ready_line(urls[0], inputs.model_id, facts[0], is_json))

    def on_listening(host: str, port: int) -> None:
        warn_if_open(host, bool(inputs.api_keys))
        urls.append(url_of(host, port))
        announce()

    def on_ready(reported: EngineFacts) -> None:
        _log.debug("%d MiB of the heap are on huge pages", settle() >> 20)
        facts.append(reported)
        announce()

    app = build(inputs, Callbacks(display, on_ready))
    try:
        return run(app, server.host, server.port, on_listening=on_listening)
    finally:
        display.close()


def ready_line(url: str, model_id: str, facts: EngineFacts, is_json: bool) -> str:
    """What is served where, from what the engine reported about itself."""
    if is_json:
        values = {
            "url": url,
            "model": model_id,
            "flash_attention": facts.has_flash_attention,
            "kv_type_k": facts.kv_type_k,
            "kv_type_v": facts.kv_type_v,
            "kv_capacity_tokens": facts.kv_capacity_tokens,
            "num_threads": facts.num_threads,
            "libllama": facts.build,
        }
        return json.dumps(values)
    kv_types = facts.kv_type_k if facts.kv_type_k == facts.kv_type_v else f"{facts.kv_type_k}/{facts.kv_type_v}"
    attention = "on" if facts.has_flash_attention else "off"
    return (
        f"ready {url}  model {model_id}  flash-attention {attention}  "
        f"kv {kv_types} {facts.kv_capacity_tokens} tokens  {facts.num_threads} thread{'' if facts.num_threads == 1 else 's'}"
    )


def _read_template(settings: Settings) -> str | None:
    file = settings.model.chat_template_file
    return None if file is None else read_text_file(file, "chat template", "model.chat_template_file")


def _read_prompt(prompt: str) -> str:
    return read_text_file(prompt[1:], "pinned prompt", "model.pinned_prompts") if prompt.startswith("@") else prompt
