"""`ultrafast serve` on a free port, with the sizes that the benchmark gives to both sides."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.client import Client
from benchmarks.options import Options
from benchmarks.processes import RunningServer, start_process
from benchmarks.prompts import MODEL_NAME

START_TIMEOUT_S = 120.0


def start_ours(
    options: Options,
    log_path: Path,
    *,
    settings: tuple[str, ...] = (),
    module: str = "ultrafast.cli.main",
    name: str = "ultrafast",
) -> RunningServer:
    """Start it and wait for its ready line.

    Args:
        settings: further `section.key=value` assignments.
        module: what `python -m` runs; another one than the CLI may wrap it.
        name: in the report.
    """
    command = [
        sys.executable,
        "-m",
        module,
        "serve",
        "--json",
        f"--model={options.model_path}",
        f"--served-name={MODEL_NAME}",
        "--port=0",
        f"--threads={options.num_threads}",
        f"--context={options.context_tokens}",
        "--log-level=warning",
        *(f"--set={assignment}" for assignment in settings),
    ]
    process, line = start_process(command, log_path, START_TIMEOUT_S)
    try:
        return RunningServer(name, process, json.loads(line)["url"])
    except BaseException:
        process.kill()
        raise


def engine_pid(server: RunningServer) -> int | None:
    """The engine child that runs at the moment."""
    engines = [pid for pid in server.pids[1:] if b"engine_process" in _command_line(pid)]
    return engines[0] if engines else None


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def is_all_on_disk(client: Client) -> bool:
    """Whether everything that host memory holds is on disk, too, and there is something."""
    levels = json.loads((await client.get("/admin/cache")).body)["levels"]
    num_tokens = {level["level"]: level["num_tokens"] for level in levels}
    return bool(num_tokens["host"] == num_tokens["disk"] > 0)
