"""Real `ultrafast serve` processes for tests: started on a free port, waited for, stopped cleanly, checked for leftovers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.02


class RunningServer:
    """A server that printed its ready line.

    Attributes:
        ready_line: that line, without the line break.
        url: `http://127.0.0.1:PORT`.
        pid: of the API process.
    """

    def __init__(self, process: subprocess.Popen[bytes], ready_line: str, stderr_path: Path) -> None:
        self._process = process
        self._stderr_path = stderr_path
        self.ready_line = ready_line
        self.url = ready_line.split()[1]
        self.pid = process.pid
        self.is_expected_dead = False
        """A test killed it on purpose: `stop` then does not ask for exit code 0."""

    @property
    def engine_pid(self) -> int:
        """Process id of the engine child that runs now; waits for one while it is being replaced."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            children = child_pids(self.pid)
            if children:
                return children[0]
            time.sleep(_POLL_S)
        raise AssertionError(f"the server has no engine child; stderr:\n{self.stderr}")

    @property
    def stderr(self) -> str:
        """What the server has logged so far."""
        return self._stderr_path.read_text(encoding="utf-8", errors="replace")

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end of the process and return its exit code."""
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """SIGTERM, unless it has ended already; then check exit code 0, an empty stdout and that no child is left."""
        children = child_pids(self.pid)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self.wait()
            rest = _stdout(self._process).read()
        finally:
            self.kill()
        assert code == 0 or self.is_expected_dead, f"exit code {code}; stderr:\n{self.stderr}"
        assert rest == b"", f"more than the ready line on stdout: {rest!r}"
        _wait_until_gone(children)

    def kill(self) -> None:
        """End the process at once if it still runs, and free what the test holds of it. Its engine child then ends by itself."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        _stdout(self._process).close()


def start_server(
    model_path: Path | None,
    stderr_path: Path,
    *,
    arguments: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    **settings: Any,
) -> RunningServer:
    """Start `ultrafast serve` on a free port and wait for its ready line.

    Args:
        model_path: the model file; None = whatever the settings say.
        stderr_path: where its log goes.
        arguments: further command-line arguments.
        env: environment variables on top of this process's.
        settings: `section__key=value`, for example `engine__max_num_running=4`.
    """
    command = [sys.executable, "-m", "ultrafast.cli.main", "serve", "--port", "0", *arguments]
    if model_path is not None:
        command += ["--model", str(model_path)]
    for name, value in settings.items():
        command += ["--set", f"{name.replace('__', '.')}={value}"]
    with stderr_path.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env={**os.environ, **(env or {})}
        )
    try:
        line = _read_line(process, START_TIMEOUT_S)
    except TimeoutError:
        line = ""
    if not line.startswith("ready "):
        process.kill()
        process.wait()
        _stdout(process).close()
        raise AssertionError(f"no ready line but {line!r}; stderr:\n{stderr_path.read_text(errors='replace')}")
    return RunningServer(process, line, stderr_path)


def child_pids(pid: int) -> list[int]:
    """Process ids of the direct children of a process; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in text.split()]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _wait_until_gone(pids: list[int]) -> None:
    deadline_s = time.monotonic() + 10.0
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline_s, f"processes left behind: {left}"
        time.sleep(_POLL_S)


def _stdout(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _read_line(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    deadline_s = time.monotonic() + timeout_s
    data = b""
    while not data.endswith(b"\n"):
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
        if not readable:
            raise TimeoutError
        chunk = os.read(_stdout(process).fileno(), 1)
        if not chunk:
            break
        data += chunk
    return data.decode().rstrip("\n")
