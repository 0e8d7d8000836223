"""What this process may use of the machine: cores and memory, container limits included."""

from __future__ import annotations

import os
from pathlib import Path

from ultrafast.core.errors import ConfigError

_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
_CGROUP_MEMORY_USED = Path("/sys/fs/cgroup/memory.current")
_MEMINFO = Path("/proc/meminfo")


def usable_cores() -> int:
    """Cores that this process may keep busy: its CPU affinity, cut to the container's CPU quota; at least 1.

    ggml's threads meet at barriers and spin, so one thread too many costs far more than one too few.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(affinity, _quota_cores(affinity)))


def check_threads(num_threads: int) -> None:
    """Refuse more compute threads than there are cores for.

    Raises:
        ConfigError: it is so.
    """
    cores = usable_cores()
    if num_threads > cores:
        raise ConfigError(
            f"engine.num_threads = {num_threads}, but this process may use {cores} cores; "
            "more threads than cores make every token slower",
            param="engine.num_threads",
            hint="leave it out (or 0): one thread per usable core",
        )


def available_memory_bytes() -> int:
    """Memory that can be allocated now without swapping, container limit included."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in _read_lines(_MEMINFO):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit, used = _read_number(_CGROUP_MEMORY), _read_number(_CGROUP_MEMORY_USED)
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _quota_cores(default: int) -> int:
    # "MAX PERIOD" in microseconds, or "max PERIOD" for no limit.
    lines = _read_lines(_CGROUP_CPU)
    words = lines[0].split() if lines else []
    if len(words) != 2 or words[0] == "max":
        return default
    return max(1, int(words[0]) // int(words[1]))


def _read_number(path: Path) -> int | None:
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
