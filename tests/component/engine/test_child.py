"""The child process by itself: how it starts, and that it never outlives its parent."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.component.engine.scripted_child import Script

from ultrafast.core.request import Request, SamplingParams
from ultrafast.engine.codec import client_side_reader, encode_frame
from ultrafast.engine.host import EXIT_BROKEN_PEER, EXIT_LOAD_FAILED, EXIT_OK
from ultrafast.engine.messages import Configure, FromEngine, Heartbeat, LoadFailed, Loading, Ready, Shutdown, Submit, ToEngine
from ultrafast.engine.options import EngineOptions

CHILD = str(Path(__file__).with_name("scripted_child.py"))

# Starts a child that is given a copy of the parent's own end too, says its pid, and waits.
FORGETFUL_PARENT = f"""
import os, socket, subprocess, sys
ours, theirs = socket.socketpair()
fds = [theirs.fileno(), ours.fileno()]
child = subprocess.Popen([sys.executable, {CHILD!r}, "--fd", str(theirs.fileno())], pass_fds=fds[: int(sys.argv[1])])
print(child.pid, flush=True)
sys.stdin.read()
"""


class Child:
    def __init__(self, script: Script) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(60)
        self._frames = client_side_reader()
        environment = {**os.environ, "SCRIPTED_CHILD": msgspec.json.encode(script).decode()}
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen([sys.executable, CHILD, "--fd", str(fd)], pass_fds=(fd,), env=environment)

    def send(self, *messages: ToEngine) -> None:
        self._socket.sendall(b"".join(encode_frame(message) for message in messages))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read_until(self, kind: type[FromEngine]) -> list[FromEngine]:
        messages: list[FromEngine] = []
        while not any(isinstance(message, kind) for message in messages):
            data = self._socket.recv(65536)
            assert data, f"the child ended before it said {kind}; it said {messages}"
            messages += self._frames.feed(data)
        return messages

    def hang_up(self) -> None:
        self._socket.close()

    def wait(self) -> int:
        return self.process.wait(timeout=60)


@pytest.fixture
def start() -> Iterator[Callable[[Script], Child]]:
    children: list[Child] = []

    def make(script: Script) -> Child:
        children.append(Child(script))
        return children[-1]

    yield make
    for child in children:
        child.hang_up()
        child.process.kill()
        child.process.wait()


def test_it_loads_and_exits_when_told(start: Callable[[Script], Child]) -> None:
    child = start(Script())
    child.send(Configure(EngineOptions("m")))
    said = [message for message in child.read_until(Ready) if not isinstance(message, Heartbeat)]
    assert [type(message) for message in said] == [Loading, Ready]
    child.send(Shutdown())
    assert child.wait() == EXIT_OK


def test_it_exits_when_told_while_loading(start: Callable[[Script], Child]) -> None:
    child = start(Script(load="slow"))
    child.send(Configure(EngineOptions("m")))
    child.read_until(Loading)
    child.send(Shutdown())
    assert child.wait() == EXIT_OK


def test_it_says_why_it_cannot_load(start: Callable[[Script], Child]) -> None:
    child = start(Script(load="fail"))
    child.send(Configure(EngineOptions("m")))
    assert child.read_until(LoadFailed)[-1] == LoadFailed("the model file is cut", "fetch it again", "invalid_model_file")
    assert child.wait() == EXIT_LOAD_FAILED


@pytest.mark.parametrize("load", ["ok", "slow"])
def test_it_ends_when_nobody_is_there_any_more(start: Callable[[Script], Child], load: str) -> None:
    child = start(Script(load=load, step_s=0.01))
    child.send(Configure(EngineOptions("m")))
    child.read_until(Loading)
    if load == "ok":
        child.send(Submit(Request("a", (1, 2), SamplingParams(max_tokens=1_000_000))))
    child.hang_up()
    assert child.wait() == EXIT_OK


def test_it_ends_on_nonsense(start: Callable[[Script], Child]) -> None:
    child = start(Script())
    child.send_bytes(b"\x05\x00\x00\x00hello")
    assert child.wait() == EXIT_BROKEN_PEER


def test_it_leaves_ctrl_c_and_sigterm_to_its_parent(start: Callable[[Script], Child]) -> None:
    child = start(Script())
    child.send(Configure(EngineOptions("m")))
    child.read_until(Ready)
    os.kill(child.process.pid, signal.SIGINT)
    os.kill(child.process.pid, signal.SIGTERM)
    child.read_until(Heartbeat)
    child.send(Shutdown())
    assert child.wait() == EXIT_OK


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("num_inherited", [1, 2])
def test_it_dies_with_its_parent(num_inherited: int) -> None:
    """With 2 the connection never ends (the child holds both ends): only the kernel's fence is left."""
    environment = {**os.environ, "SCRIPTED_CHILD": "{}"}
    command = [sys.executable, "-c", FORGETFUL_PARENT, str(num_inherited)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until_tethered(pid)
        pidfd = os.pidfd_open(pid)
        parent.kill()
    is_gone = bool(select.select([pidfd], [], [], 60)[0])
    os.close(pidfd)
    assert is_gone, "the child outlived its parent"


def wait_until_tethered(pid: int) -> None:
    """Its signals are set, and so is the kernel's fence when the threads run."""
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
        threads = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads"))
        if ignored & (1 << (signal.SIGTERM - 1)) and threads > 1:
            return
        time.sleep(0.01)
