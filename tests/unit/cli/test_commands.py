"""The commands that need no server: output, exit codes and errors that end with a hint."""

import json
import os
from collections.abc import Iterator

import click
import pytest

from ultrafast import __version__
from ultrafast.cli.main import cli, main


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("ULTRAFAST_CACHE_DIR", str(tmp_path / "cache"))


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version(capsys):
    code, out, _ = run(capsys, "version", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["ultrafast"] == __version__
    assert facts["libllama"].startswith("b")


def test_config_show_is_a_valid_settings_file_of_the_same_settings(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ULTRAFAST_SERVER__READ_TIMEOUT_S", "7")
    code, out, _ = run(capsys, "config", "--show", "--port", "9000", "--set", 'model.served_name=a "b" é')
    assert code == 0
    assert "# environment ULTRAFAST_SERVER__READ_TIMEOUT_S" in out
    file = tmp_path / "shown.toml"
    file.write_text(out, encoding="utf-8")
    monkeypatch.delenv("ULTRAFAST_SERVER__READ_TIMEOUT_S")
    code, out, _ = run(capsys, "config", "--json", "--config", str(file))
    values = json.loads(out)
    assert code == 0
    assert values["server.port"]["value"] == 9000
    assert values["server.read_timeout_s"]["value"] == 7
    assert values["model.served_name"]["value"] == 'a "b" é'
    assert values["model.chat_template_file"] == {"value": None, "origin": "default"}


def test_config_never_shows_a_key(capsys, monkeypatch):
    monkeypatch.setenv("ULTRAFAST_API_KEY", "very-secret-key")
    _, out, err = run(capsys, "config", "--show")
    assert "very-secret-key" not in out + err


@pytest.mark.parametrize("command", ["serve", "config"])
def test_a_typo_in_the_file_ends_with_line_and_nearest_key(capsys, tmp_path, command):
    file = tmp_path / "u.toml"
    file.write_text("[server]\n\nprot = 9000\n")
    code, out, err = run(capsys, command, "--config", str(file))
    assert code == 2
    assert out == ""
    assert err == f"error: {file} line 3: unknown setting server.prot.\nhint: Did you mean server.port?\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["serve", "--prot", "1"], "--prot"),
        (["nonsense"], "nonsense"),
        (["serve", "--port", "x"], "--port: server.port must be an integer, at least 0, at most 65535; got"),
        (["serve", "--set", "server.port"], "there is no `=`"),
        (["serve", "--set", "server.prt=1"], "unknown setting server.prt"),
        (["serve", "--port", "1", "--set", "server.port=2"], "given twice"),
        (["serve", "--api-key-file", "/nonexistent/keys"], "Cannot read the API key file"),
        (["models", "pull"], "NAME"),
        (["chat", "--temperature", "nan"], "nan is not a number"),
        (["chat", "--temperature", "inf"], "not in the range"),
        (["chat", "--tier", "nope"], "'nope' is not one of 'ultrafast'"),
        (["chat", "--url", "ftp://x"], "'ftp://x' is not an HTTP URL"),
        (["chat", "--url", "http://x:1x"], "is not an HTTP URL"),
        (["chat", "--url", "http://[x"], "is not an HTTP URL"),
        (["cache", "--url", "ftp://x", "show"], "'ftp://x' is not an HTTP URL"),
        (["cache", "warm", os.devnull], f"no system prompt in {os.devnull}"),
        (["monitoring", "rules", "--slo-percent", "nan"], "nan is not a number"),
        (["config", "--set", "server.port=1_0"], "server.port must be an integer"),
        (["serve", "--model", "x.gguf", "--set", "engine.max_num_running=300"], "at most 200"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_hint(capsys, arguments, part):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert part in err
    assert err.splitlines()[-1].startswith("hint: ")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["serve", "--port", "0", "--model", "smollm2-135m-instruct"], "not on this machine"),
        (["serve", "--port", "0", "--model", "/nonexistent/x.gguf"], "no such file"),
        (["serve", "--port", "0", "--model", __file__], "not a GGUF file"),
        (["models", "path", "smolm2"], "no model named"),
        (["models", "pull", "smolm2"], "no model named"),
    ],
)
def test_a_failure_is_exit_code_1_with_a_hint(capsys, arguments, part):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (1, "")
    assert part in err
    assert err.splitlines()[-1].startswith("hint: ")


def test_models_list(capsys):
    code, out, _ = run(capsys, "models", "list", "--json")
    assert code == 0
    assert json.loads(out)[0]["name"] == "smollm2-135m-instruct"
    code, out, _ = run(capsys, "models", "list")
    assert code == 0
    assert "Apache-2.0" in out


def test_every_command_explains_itself(capsys):
    for name in ("", *cli.commands):
        code, out, _ = run(capsys, *([name] if name else []), "--help")
        assert code == 0
        assert "Usage: ultrafast" in out


def _all_options(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Parameter]]:
    yield from ((names, option) for option in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _all_options(inner, (*names, name))


_NUMBERS = [
    pytest.param((*names, option.opts[0]), id=" ".join((*names, option.opts[0])))
    for names, option in _all_options(cli)
    if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
]


@pytest.mark.parametrize("words", _NUMBERS)
@pytest.mark.parametrize("number", ["1_0", "nan"])
def test_no_number_has_underscores_or_is_none(capsys, words, number):
    """As in settings. Commands that end with a verdict have a code of their own for wrong usage."""
    code, out, err = run(capsys, *words, number)
    assert (code, out) == (3 if words[0] in ("compare", "gate") else 2, "")
    assert words[-1] in err
    assert number in err


def test_there_are_numbers_among_the_options():
    assert len(_NUMBERS) > 20
