"""A real server process: drain on the first signal, an end at once on the second, exit code 0 always."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[3]
CHAT = "/v1/chat/completions"


@contextmanager
def server(drain_timeout_s: float) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [sys.executable, "-m", "tests.component.api.served", str(drain_timeout_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                yield process, http
            assert process.stdout.read() == ""
        finally:
            process.kill()


def talk(num_tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "talk", "seed": num_tokens, "stream": True, "messages": messages}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_with_exit_code_0(number: signal.Signals) -> None:
    with server(60) as (process, http):
        assert http.get("/health/ready").status_code == 200
        answer = http.post(CHAT, json={"model": "nodelay", "messages": [{"role": "user", "content": "x"}]})
        assert answer.json()["choices"][0]["message"]["content"] == "nodelay=1"
        process.send_signal(number)
        assert process.wait(60) == 0


def test_a_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    with server(60) as (process, http), http.stream("POST", CHAT, json=talk(100)) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        process.send_signal(signal.SIGTERM)
        while True:
            ready = httpx.get(http.base_url.join("/health/ready"))
            if ready.status_code == 503:
                break
        assert ready.json()["reason"] == "draining"
        refused = httpx.post(http.base_url.join(CHAT), json=talk(1))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        text += "".join(pieces)
        assert text.count('"content":"x"') == 100
        assert text.endswith("data: [DONE]\n\n")
        assert process.wait(60) == 0


def test_what_outlasts_the_drain_ends_with_an_error_in_the_stream() -> None:
    with server(0.1) as (process, http), http.stream("POST", CHAT, json=talk(1_000_000)) as answer:
        pieces = answer.iter_text()
        next(pieces)
        process.send_signal(signal.SIGTERM)
        text = "".join(pieces)
        assert '"code":"shutting_down"' in text
        assert text.endswith("data: [DONE]\n\n")
        assert process.wait(60) == 0


def test_a_second_signal_does_not_wait() -> None:
    with server(3600) as (process, http), http.stream("POST", CHAT, json=talk(1_000_000)) as answer:
        pieces = answer.iter_text()
        next(pieces)
        process.send_signal(signal.SIGTERM)
        while httpx.get(http.base_url.join("/health/ready")).status_code != 503:
            pass
        process.send_signal(signal.SIGTERM)
        assert '"code":"shutting_down"' in "".join(pieces)
        assert process.wait(60) == 0
