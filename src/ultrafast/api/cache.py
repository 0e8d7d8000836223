"""`GET /admin/cache`, `POST /admin/cache/clear`: what KV is where, and away with it."""

from __future__ import annotations

import msgspec

from ultrafast.api.context import EdgeContext
from ultrafast.api.exchange import Exchange
from ultrafast.core.events import KvLevelsChanged
from ultrafast.engine.device_kv import DeviceKv
from ultrafast.observe.metrics import KV_BLOCK_TOKENS


class LevelView(msgspec.Struct, omit_defaults=True):
    """One level. `capacity_bytes` is 0 when it is off. Of `num_tokens`, running requests need `num_running_tokens` (device)."""

    level: str
    used_bytes: int
    capacity_bytes: int
    num_tokens: int
    num_blocks: int
    num_running_tokens: int | None = None


class CacheView(msgspec.Struct):
    """The levels that there are, the fastest first, and how often pieces were moved since the engine started."""

    levels: list[LevelView]
    num_saved: int = 0
    num_loaded: int = 0
    num_written: int = 0
    num_read: int = 0


class ClearRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`disk`: also delete the files. No body at all means every level."""

    disk: bool = True


class ClearAnswer(msgspec.Struct):
    """The order was taken."""

    status: str = "clearing"


class CacheAdmin:
    """The routes for the KV cache."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context

    async def show(self, exchange: Exchange) -> None:
        """Answer `GET /admin/cache`."""
        port = self._context.cache
        view = view_of(port.levels, port.device_kv) if port is not None else CacheView([])
        await exchange.respond(200, [], msgspec.json.encode(view))

    async def clear(self, exchange: Exchange) -> None:
        """Answer `POST /admin/cache/clear`: it happens before the next step. What running requests need stays."""
        body = await self._context.read_if_any(exchange, ClearRequest)
        if self._context.cache is not None:
            self._context.cache.clear_cache(with_disk=body.disk)
        await exchange.respond(200, [], msgspec.json.encode(ClearAnswer()))


def view_of(levels: KvLevelsChanged | None, device: DeviceKv | None) -> CacheView:
    """Say it for people and programs. `levels`: None = nothing outside the device was ever used; `device`: None = no engine."""
    views = []
    if device is not None:
        num_tokens = device.num_running_tokens + device.num_cached_tokens
        used, capacity = (num * device.bytes_per_token for num in (num_tokens, device.capacity_tokens))
        views.append(_level("device", used, capacity, num_tokens, device.num_running_tokens))
    if levels is None:
        return CacheView(views)
    disk_capacity = levels.disk_capacity_bytes if levels.is_disk_on else 0
    views.append(_level("host", levels.host_bytes, levels.host_capacity_bytes, levels.num_host_tokens))
    views.append(_level("disk", levels.disk_bytes, disk_capacity, levels.num_disk_tokens))
    return CacheView(views, levels.num_saved, levels.num_loaded, levels.num_written, levels.num_read)


def _level(name: str, used_bytes: int, capacity_bytes: int, num_tokens: int, num_running: int | None = None) -> LevelView:
    return LevelView(name, used_bytes, capacity_bytes, num_tokens, -(-num_tokens // KV_BLOCK_TOKENS), num_running)
