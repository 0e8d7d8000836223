"""`ultrafast chat`: a terminal client over HTTP that shows how fast each answer was.

On a terminal: a conversation. Otherwise: one prompt from stdin, the answer to stdout.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from ultrafast.cli.answer import Answer, receive_answer
from ultrafast.cli.errors import report
from ultrafast.cli.http_client import ServerClient, ServerError
from ultrafast.cli.number_range import CountRange, NumberRange
from ultrafast.config.api_keys import read_api_keys
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import TIER_ALIASES

_HELP = '/reset forgets the conversation, /exit leaves; """ starts and ends a message of several lines; Ctrl-C stops an answer'


@click.command()
@click.option("--url", envvar="ULTRAFAST_URL", default="http://127.0.0.1:8080", show_default=True, help="The running server.")
@click.option("--model", metavar="NAME", help="Model to ask; the server's first one by default.")
@click.option(
    "--tier", type=click.Choice(list(TIER_ALIASES)), metavar="TIER", help="Service tier: ultrafast, priority, default or flex."
)
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--max-tokens", type=CountRange(min=1), metavar="N", help="Longest answer, in tokens.")
@click.option("--temperature", type=NumberRange(0, 2), metavar="T", help="0: always the most likely token.")
@click.option(
    "--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the API key; or set ULTRAFAST_API_KEY."
)
@click.option("--json", "is_json", is_flag=True, help="Print each answer with its timings as one JSON object.")
def chat(url: str, is_json: bool, api_key_file: Path | None, model: str | None, system: str | None, **options: Any) -> int:
    """Chat with a running server; shows time to first token and tokens per second of each answer."""
    client = ServerClient(url, _read_key(api_key_file))
    conversation = Conversation(client, model or _first_model(client), system, _request_options(options))
    if sys.stdin.isatty() and sys.stdout.isatty():
        return _talk(conversation, is_json)
    prompt = _read_all().strip()
    if not prompt:
        raise click.UsageError("There is no prompt on stdin.")
    _show(conversation, prompt, is_json)
    return 0


class Conversation:
    """The messages so far. A stopped or failed answer leaves what was said, so that the next turn stays sensible."""

    def __init__(self, client: ServerClient, model: str, system: str | None, options: dict[str, Any]) -> None:
        self.model = model
        self._client = client
        self._options = options
        self._opening = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages = list(self._opening)

    def ask(self, prompt: str, answer: Answer) -> None:
        """Send one message and fill `answer` while it streams.

        Raises:
            ServerError: nothing is added to the conversation.
            KeyboardInterrupt: what has come so far is kept as the answer.
        """
        messages = [*self._messages, {"role": "user", "content": prompt}]
        body = {"model": self.model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        try:
            receive_answer(self._client, body | self._options, answer)
        except KeyboardInterrupt:
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]
            raise
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]


def _talk(conversation: Conversation, is_json: bool) -> int:
    click.secho(f"{conversation.model}: {_HELP}", dim=True, err=True)
    while True:
        try:
            prompt = _read_message()
        except (EOFError, KeyboardInterrupt):
            click.echo(err=True)
            return 0
        if prompt == "/exit":
            return 0
        if prompt == "/reset":
            conversation.reset()
        elif prompt.startswith("/"):
            report(f"There is no command {prompt.split()[0]}.", _HELP)
        elif prompt:
            _turn(conversation, prompt, is_json)


def _turn(conversation: Conversation, prompt: str, is_json: bool) -> None:
    try:
        _show(conversation, prompt, is_json)
    except KeyboardInterrupt:
        click.secho("\n  stopped", dim=True, err=True)
    except ServerError as error:
        report(error.message, error.hint)


def _show(conversation: Conversation, prompt: str, is_json: bool) -> None:
    answer = Answer(None if is_json else _write)
    conversation.ask(prompt, answer)
    if is_json:
        click.echo(json.dumps(answer.as_json(), ensure_ascii=False))
        return
    click.echo()
    click.secho(f"  {answer.summary()}", dim=True, err=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _read_all() -> str:
    try:
        text = sys.stdin.read()
        text.encode()  # without a locale Python lets bytes through that are none of UTF-8
    except UnicodeError as error:
        raise ConfigError(
            "The prompt on stdin is not UTF-8 text.", hint="Convert it first, for example with `iconv -f latin1 -t utf-8`."
        ) from error
    return text


def _read_message() -> str:
    """One line, or the lines between two triple quotes."""
    line = input("> ").strip()
    if not line.startswith('"""'):
        return line
    lines = [line[3:]]
    while not lines[-1].rstrip().endswith('"""'):
        lines.append(input(". "))
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip()


def _request_options(options: dict[str, Any]) -> dict[str, Any]:
    names = {"tier": "service_tier", "max_tokens": "max_tokens", "temperature": "temperature"}
    return {wire: options[name] for name, wire in names.items() if options[name] is not None}


def _first_model(client: ServerClient) -> str:
    listed = client.get("/v1/models")["data"]
    if not listed:
        raise ServerError("The server serves no model.", hint="Wait until it is ready, or look into its log.")
    return str(listed[0]["id"])


def _read_key(path: Path | None) -> str | None:
    keys = read_api_keys(str(path) if path else None, os.environ)
    return keys[0][1] if keys else None
