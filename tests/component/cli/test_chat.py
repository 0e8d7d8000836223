"""`ultrafast chat` against a scripted server: pipes, a terminal, Ctrl-C, errors."""

import io
import json
import os
import pty
import subprocess
import sys
import time

import pytest
from tests.component.cli.scripted_server import ending, event, scripted

from ultrafast.cli.main import main


@pytest.fixture
def ask(monkeypatch, capsys):
    def run(url: str, prompt: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(prompt))
        code = main(["chat", "--url", url, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_pipe_gets_the_answer_on_stdout_and_the_times_on_stderr(ask):
    with scripted([event("你"), b": ping\n\n", event("好!"), *ending(2)]) as server:
        code, out, err = ask(server.url, "hello\n", "--tier", "flex", "--system", "Be brief.", "--max-tokens", "9")
    assert code == 0
    assert out == "你好!\n"
    assert "TTFT" in err
    assert "2 tokens" in err
    (body,) = server.bodies
    assert body["model"] == "scripted"
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert (body["service_tier"], body["max_tokens"], body["stream"]) == ("flex", 9, True)


def test_an_answer_split_at_every_byte_is_the_same(ask):
    stream = b"".join([event("a…"), event("b"), *ending(2)])
    with scripted([bytes([byte]) for byte in stream]) as server:
        assert ask(server.url, "x")[:2] == (0, "a…b\n")


def test_a_wait_in_the_queue_may_be_longer_than_any_silence_of_a_stream(ask, monkeypatch):
    monkeypatch.setattr("ultrafast.cli.http_client._SILENCE_TIMEOUT_S", 0.2)
    with scripted([event("yes"), *ending(1)]) as server:
        server.head_delay_s = 0.6
        assert ask(server.url, "x")[:2] == (0, "yes\n")


def test_json(ask):
    with scripted([event("yes"), *ending(1)]) as server:
        code, out, err = ask(server.url, "x", "--json", "--model", "m")
    assert (code, err) == (0, "")
    assert json.loads(out)["text"] == "yes"
    assert json.loads(out)["ttft_ms"] >= 0
    assert server.bodies[0]["model"] == "m"


def test_the_key_is_sent(ask, monkeypatch):
    monkeypatch.setenv("ULTRAFAST_API_KEY", "key-key-key")
    with scripted([event("x"), *ending(1)]) as server:
        assert ask(server.url, "x")[0] == 0
    assert server.headers_seen[0]["authorization"] == "Bearer key-key-key"


@pytest.mark.parametrize(
    ("script", "status", "part"),
    [
        ([], 401, "HTTP 401: no"),
        ([event("a"), b'data: {"error":{"message":"engine gone","code":"x"}}\n\n', b"data: [DONE]\n\n"], 200, "engine gone"),
        ([event("a")], 200, "ended before the answer did"),
    ],
)
def test_errors_end_with_exit_code_1(ask, script, status, part):
    with scripted(script, status) as server:
        code, _, err = ask(server.url, "x")
    assert code == 1
    assert part in err


def test_nobody_listens(ask):
    with scripted([]) as server:
        url = server.url
    code, out, err = ask(url, "x")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("hint: Is the server running?")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_prompt_that_is_not_utf_8_is_wrong_usage(monkeypatch, capsys, errors):
    """With a UTF-8 locale and without a locale."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors))
    with scripted([]) as server:
        assert main(["chat", "--url", server.url]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: The prompt on stdin is not UTF-8 text.\nhint: ")
    assert server.bodies == []


def test_ctrl_c_stops_the_answer_only():
    with scripted([event("one "), None]) as server, _terminal("chat", "--url", server.url) as terminal:
        terminal.wait_for("> ")
        terminal.type("first\r")
        terminal.wait_for("one ")
        terminal.type("\x03")
        terminal.wait_for("stopped")
        assert server.is_client_gone.wait(30)
        server.script = [event("two"), *ending(1)]
        terminal.type('"""a\r')
        terminal.wait_for(". ")
        terminal.type('b"""\r')
        terminal.wait_for("TTFT")
        terminal.type("/nonsense\r")
        terminal.wait_for("no command")
        terminal.type("/exit\r")
        assert terminal.wait() == 0
    assert server.bodies[1]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one "},
        {"role": "user", "content": "a\nb"},
    ]


def test_ctrl_c_at_the_prompt_leaves():
    with scripted([]) as server, _terminal("chat", "--url", server.url) as terminal:
        terminal.wait_for("> ")
        terminal.type("\x03")
        assert terminal.wait() == 0


# Opening it makes the pseudo-terminal the controlling one of the new session, so that Ctrl-C becomes SIGINT.
_ON_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
from ultrafast.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class _terminal:  # noqa: N801
    """A command on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def __enter__(self):
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *self._arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        os.set_blocking(self._master, False)
        seen = b""
        deadline_s = time.monotonic() + 60
        while text.encode() not in seen:
            assert time.monotonic() < deadline_s, f"never saw {text!r} but {seen!r}"
            try:
                seen += os.read(self._master, 4096)
            except BlockingIOError:
                time.sleep(0.02)

    def wait(self) -> int:
        return self._process.wait(60)
