"""Samples of KV outside the device. The engine counts since its start; these counters outlive it."""

from __future__ import annotations

from ultrafast.core.events import KvLevelsChanged, RequestFinished
from ultrafast.observe.metrics import KV_BLOCK_TOKENS, Metrics


class LevelSeries:
    """The series of host memory and disk, and of prefix hits by level."""

    def __init__(self, metrics: Metrics) -> None:
        self._bytes = {level: metrics.kv_bytes.labels(level) for level in ("host", "disk")}
        self._capacity = {level: metrics.kv_capacity_bytes.labels(level) for level in ("host", "disk")}
        self._blocks = {level: metrics.kv_blocks.labels(level, "cached") for level in ("host", "disk")}
        self._moved = {way: metrics.kv_moved_runs.labels(way) for way in ("save", "load", "write", "read")}
        self._evicted = {level: metrics.kv_evicted_runs.labels(level) for level in ("host", "disk")}
        self._hits = {level: metrics.prefix_hits.labels(level) for level in ("device", "host", "disk")}
        self._counted: dict[str, int] = {}

    def on_hits(self, event: RequestFinished) -> None:
        """Count the prompt tokens that a request did not have to compute."""
        num_elsewhere = event.num_host_tokens + event.num_disk_tokens
        self._hits["host"].inc(event.num_host_tokens)
        self._hits["disk"].inc(event.num_disk_tokens)
        self._hits["device"].inc(max(0, event.num_cached_tokens - num_elsewhere))

    def on_change(self, event: KvLevelsChanged) -> None:
        """Take over where everything stands."""
        self._set("host", event.host_bytes, event.host_capacity_bytes, event.num_host_tokens)
        self._set("disk", event.disk_bytes, event.disk_capacity_bytes if event.is_disk_on else 0, event.num_disk_tokens)
        moved = {"save": event.num_saved, "load": event.num_loaded, "write": event.num_written, "read": event.num_read}
        for way, total in moved.items():
            self._moved[way].inc(self._new(way, total))
        for level, total in (("host", event.num_evicted_host), ("disk", event.num_evicted_disk)):
            self._evicted[level].inc(self._new(level, total))

    def on_restart(self) -> None:
        """Host memory died with the engine; the next one counts from zero and says what is on disk."""
        self._counted.clear()
        for level in ("host", "disk"):
            self._set(level, 0, 0, 0)

    def _set(self, level: str, num_bytes: int, capacity_bytes: int, num_tokens: int) -> None:
        self._bytes[level].set(num_bytes)
        self._capacity[level].set(capacity_bytes)
        self._blocks[level].set(-(-num_tokens // KV_BLOCK_TOKENS))

    def _new(self, name: str, total: int) -> int:
        new = total - self._counted.get(name, 0)
        self._counted[name] = total
        return max(0, new)
