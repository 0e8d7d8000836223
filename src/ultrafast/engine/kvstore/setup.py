"""Opens the levels that the settings ask for, or says why one stays off; a cache never stops a server from starting."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.options import EngineFacts, EngineOptions
from ultrafast.kv.level import LevelLimits
from ultrafast.kv.run import FoundRun

_log = logging.getLogger("ultrafast.engine")

HOST_SHARE = 10
"""By default, host memory for KV is 1/HOST_SHARE of what is free at the start, and at most MAX_DEFAULT_HOST_BYTES."""
MAX_DEFAULT_HOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Levels:
    """What was opened. `limits` is None when there is no level outside the device; `found` is on disk from earlier."""

    limits: LevelLimits | None
    disk: DiskStore | None
    found: Sequence[FoundRun] = ()


def open_levels(options: EngineOptions, facts: EngineFacts, key: bytes, available_bytes: int) -> Levels:
    """Open host memory and disk for an engine whose KV has this key.

    Without reuse between requests there is host memory all the same: what a request that is preempted needs later waits there.
    """
    host_bytes = options.kv_host_bytes
    if host_bytes < 0:
        host_bytes = min(available_bytes // HOST_SHARE, MAX_DEFAULT_HOST_BYTES)
    if host_bytes == 0:
        return Levels(None, None)
    disk, found = _open_disk(options, key)
    limits = LevelLimits(
        host_bytes=host_bytes,
        disk_bytes=options.kv_disk_bytes if disk is not None else 0,
        ttl_s=options.kv_ttl_s,
        bytes_per_token=facts.state_bytes_per_token,
        fixed_bytes=facts.state_bytes_fixed,
        model_key=key,
        can_trim=facts.can_trim,
    )
    return Levels(limits, disk, found)


def _open_disk(options: EngineOptions, key: bytes) -> tuple[DiskStore | None, Sequence[FoundRun]]:
    if options.kv_disk_bytes == 0 or options.kv_disk_path is None or not options.enable_prefix_cache:
        return None, ()
    disk = None
    try:
        disk = DiskStore(Path(options.kv_disk_path), key, options.kv_disk_bytes, say)
        return disk, disk.scan()
    except BlockingIOError:
        say(f"the KV level on disk is off: another server uses {options.kv_disk_path}")
    except OSError as error:
        say(f"the KV level on disk is off: {error}")
    if disk is not None:
        disk.close()
    return None, ()


def why_none(options: EngineOptions, levels: Levels) -> str | None:
    """Why nothing can be read from disk at the start; None = it can."""
    if not options.enable_prefix_cache:
        return "KV is not reused between requests (engine.enable_prefix_cache)"
    if levels.limits is None:
        return "host memory for KV is off (engine.kv_host_bytes)"
    if levels.disk is None:
        return "the KV level on disk is off (engine.kv_disk_bytes)"
    return None


def say(line: str) -> None:
    """One line for people, in the log: something is not as they want it."""
    _log.warning("%s", line)


def tell(line: str) -> None:
    """One line of what went well."""
    _log.info("%s", line)
