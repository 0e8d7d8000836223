"""Under which conditions a figure was taken: machine, load, versions, model, settings."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.options import Options

QUIET_CORES = 0.05
"""CPU that others may use during a run, in cores. Compute threads spin at barriers: one busy neighbour on two cores makes every
step 4 to 10 times slower."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PACKAGES = ("ultrafast", "xllamacpp", "numpy", "uvicorn", "uvloop", "starlette", "msgspec", "httptools", "cffi")


def fingerprint(options: Options) -> dict[str, Any]:
    """Everything that another run must share to be comparable."""
    settings = {
        key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items() if key != "log_dir"
    }
    return {
        "started_at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "model_sha256": _sha256(options.model_path),
        "settings": settings,
    }


class Neighbours:
    """CPU that processes other than ours use, from construction on.

    Ours are this process and the children that it has waited for, so read it when everything has been stopped.
    """

    def __init__(self) -> None:
        self._begin = (time.monotonic(), _busy_s(), _own_s())

    def cores(self) -> float:
        """Mean number of cores that others kept busy."""
        elapsed_s, busy_s, own_s = (
            now - then for now, then in zip((time.monotonic(), _busy_s(), _own_s()), self._begin, strict=True)
        )
        return max(0.0, busy_s - own_s) / max(elapsed_s, 1e-9)


def quiet_warnings(cores: float) -> list[str]:
    """What speaks against trusting the figures of a run during which others used so many cores."""
    if cores <= QUIET_CORES:
        return []
    return [f"WARNING: the machine is not quiet (others use {cores:.2f} cores): figures are too slow and ratios are noise"]


def _busy_s() -> float:
    """CPU seconds that the machine has spent on anything, waiting for disks not included, since it started."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in _first_line("/proc/stat").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _first_line(path: str) -> str:
    return Path(path).read_text().partition("\n")[0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
