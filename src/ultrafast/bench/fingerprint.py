"""The environment of a run, as far as it can change a figure. Flat text, for people and for the check that two runs compare."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from ultrafast import __version__

_NVIDIA = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
_TIMEOUT_S = 5.0


def client_fingerprint(is_local: bool) -> dict[str, str]:
    """This machine. Its CPU and GPU matter as the client's, and as the server's when `is_local`."""
    facts = {
        "client.ultrafast": __version__,
        "client.python": platform.python_version(),
        "client.platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "client.cpu": cpu_model(),
        "client.cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "client.load_1m": f"{os.getloadavg()[0]:.2f}",
        "client.is_server_local": str(is_local).lower(),
    }
    if (event_loop := _version("uvloop")) and sys.platform != "win32":
        facts["client.event_loop"] = f"uvloop {event_loop}"
    if gpus := _gpus():
        facts["client.gpus"] = gpus
    return facts


def cpu_model() -> str:
    """The name of the processor, or what the platform calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpus() -> str:
    if shutil.which(_NVIDIA[0]) is None:
        return ""
    try:
        found = subprocess.run(_NVIDIA, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(found.stdout.strip().splitlines()) if found.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
