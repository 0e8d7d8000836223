"""Opens the levels that the settings ask for, or says why one stays off; a cache never stops a server from starting."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.options import EngineFacts, EngineOptions
from ultrafast.kv.level import LevelLimits

_log = logging.getLogger("ultrafast.engine")

HOST_SHARE = 10
"""By default, host memory for KV is 1/HOST_SHARE of what is free at the start, and at most MAX_DEFAULT_HOST_BYTES."""
MAX_DEFAULT_HOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Levels:
    """What was opened. `limits` is None when there is no level outside the device."""

    limits: LevelLimits | None
    disk: DiskStore | None


def open_levels(options: EngineOptions, facts: EngineFacts, key: bytes, available_bytes: int) -> Levels:
    """Open host memory and disk for an engine whose KV has this key."""
    host_bytes = options.kv_host_bytes
    if host_bytes < 0:
        host_bytes = min(available_bytes // HOST_SHARE, MAX_DEFAULT_HOST_BYTES)
    if not options.enable_prefix_cache or host_bytes == 0:
        return Levels(None, None)
    disk = _open_disk(options, key)
    limits = LevelLimits(
        host_bytes=host_bytes,
        disk_bytes=options.kv_disk_bytes if disk is not None else 0,
        ttl_s=options.kv_ttl_s,
        bytes_per_token=facts.state_bytes_per_token,
        fixed_bytes=facts.state_bytes_fixed,
        model_key=key,
        can_trim=facts.can_trim,
    )
    return Levels(limits, disk)


def _open_disk(options: EngineOptions, key: bytes) -> DiskStore | None:
    if options.kv_disk_bytes == 0 or options.kv_disk_path is None:
        return None
    try:
        disk = DiskStore(Path(options.kv_disk_path), key, say)
        disk.prune_others(options.kv_disk_bytes)
        return disk
    except BlockingIOError:
        say(f"the KV level on disk is off: another server uses {options.kv_disk_path}")
    except OSError as error:
        say(f"the KV level on disk is off: {error}")
    return None


def say(line: str) -> None:
    """One line for people, in the log: something is not as they want it."""
    _log.warning("%s", line)


def tell(line: str) -> None:
    """One line of what went well."""
    _log.info("%s", line)
