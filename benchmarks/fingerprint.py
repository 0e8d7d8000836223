"""Under which conditions a figure was taken: machine, load, versions, model, settings."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.options import Options

QUIET_LOAD = 0.3
"""One-minute load average below which a machine counts as quiet. Compute threads spin at barriers: one busy neighbour on two
cores makes every step 4 to 10 times slower."""
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


def warnings_of(found: dict[str, Any]) -> list[str]:
    """What speaks against trusting figures taken now."""
    load = found["load_average"][0]
    if load <= QUIET_LOAD:
        return []
    return [f"WARNING: the machine is not quiet (load average {load:.2f}): figures are too slow and ratios are noise"]


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
