"""Server processes of a benchmark: started, looked at through /proc, stopped by pid."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_STOP_TIMEOUT_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BUFFER_BYTES = 64 * 1024 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StartError(RuntimeError):
    """A server did not come up; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers at `url`. `with` stops it and whatever it has started."""

    name: str
    process: subprocess.Popen[bytes]
    url: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """The process and its descendants."""
        return [self.pid, *descendants(self.pid)]

    def cpu_s(self) -> float:
        """CPU seconds that all its processes have used so far."""
        return sum(cpu_s(pid) for pid in self.pids)

    def stop(self) -> list[int]:
        """End it; return pids that outlived it (and were then killed): orphans."""
        pids = self.pids
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            if self.process.stdin is not None:
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_TIMEOUT_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return _kill_left(pids[1:])

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_process(
    command: Sequence[str], log_path: Path, timeout_s: float, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a process and return it with the first line that it prints.

    Raises:
        StartError: no line within `timeout_s`.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        return process, _read_line(process, timeout_s, log_path)
    except BaseException:
        process.kill()
        process.wait()
        raise


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    found = []
    for child in _children(pid):
        found += [child, *descendants(child)]
    return found


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of one process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Resident memory of one process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def rss_bytes_beside_buffers(pid: int) -> int:
    """The same without mappings of at least `BUFFER_BYTES`: those of a model, its KV pool and its computations.

    They are made once, and their pages become resident when they are used for the first time, which may be late.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    num_bytes = size = 0
    for line in lines:
        name, _, value = line.partition(":")
        if name == "Size":
            size = int(value.split()[0]) * 1024
        elif name == "Rss" and size < BUFFER_BYTES:
            num_bytes += int(value.split()[0]) * 1024
    return num_bytes


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def paused(servers: Sequence[RunningServer]) -> Iterator[None]:
    """Stop (SIGSTOP) servers for the duration: they keep their state and use no CPU."""
    pids = [pid for server in servers for pid in server.pids]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                children += [int(child) for child in (task / "children").read_text().split()]
    return children


def _kill_left(pids: Sequence[int]) -> list[int]:
    deadline_s = time.monotonic() + 5.0
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _read_line(process: subprocess.Popen[bytes], timeout_s: float, log_path: Path) -> str:
    assert process.stdout is not None
    deadline_s = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline_s - time.monotonic()
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, left_s))
        piece = os.read(process.stdout.fileno(), 4096) if readable else b""
        if not piece:
            tail = log_path.read_text(errors="replace")[-2000:]
            raise StartError(f"no ready line (exit code {process.poll()}); the end of {log_path}:\n{tail}")
        line += piece
    return line.decode().strip()
