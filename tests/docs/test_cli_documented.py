"""Every command and every flag stands in the documents, in backquotes or in a code block."""

from collections.abc import Iterator

import click
import pytest
from tests.docs.documents import ROOT, read_all_text

from ultrafast.cli.main import cli
from ultrafast.cli.options import FLAGS

TEXT = read_all_text()


def commands(group: click.Group, prefix: str = "ultrafast") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


ALL_COMMANDS = dict(commands(cli))


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_the_command_is_documented(name):
    assert name in TEXT


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_its_flags_are_documented(name):
    flags = [option for parameter in ALL_COMMANDS[name].params for option in parameter.opts if option.startswith("--")]
    assert [flag for flag in flags if f"`{flag}" not in TEXT] == []


def test_flags_of_serve_name_their_settings():
    text = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    for flag, (dotted, placeholder, _) in FLAGS.items():
        shown = placeholder.replace("|", "\\|")
        assert f"| `{flag} {shown}` | `{dotted}` |" in text
