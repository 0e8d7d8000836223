"""The routes of the KV cache, and who shares KV with whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
from tests.component.api.edge import HELLO
from tests.component.api.fake_service import FakeService, healthy

from ultrafast.api.app import build_app
from ultrafast.api.auth import ApiKeys, tenant_of
from ultrafast.api.options import namespace
from ultrafast.config.api_keys import ApiKey
from ultrafast.config.settings import ServerSettings
from ultrafast.core.events import KvLevelsChanged
from ultrafast.engine.device_kv import DeviceKv
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder

LEVELS = KvLevelsChanged(1000, 4000, 64, 500, 900, 33, True, 5, 4, 3, 2, 1, 0)
DEVICE = DeviceKv(num_running_tokens=30, num_cached_tokens=70, capacity_tokens=400, bytes_per_token=10)
CHAT = "/v1/chat/completions"


@dataclass
class FakeCache:
    levels: KvLevelsChanged | None = LEVELS
    device_kv: DeviceKv | None = DEVICE
    cleared: list[bool] = field(default_factory=list)

    def clear_cache(self, *, with_disk: bool) -> None:
        self.cleared.append(with_disk)


def connect(cache: FakeCache, keys: ApiKeys | None = None, **settings: object) -> tuple[httpx.AsyncClient, FakeService]:
    service = FakeService()
    app = build_app(service, healthy, ServerSettings(**settings), Recorder(Metrics()), keys=keys, cache=cache)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test"), service  # type: ignore[arg-type]


async def test_show_says_what_is_where() -> None:
    http, _ = connect(FakeCache())
    async with http:
        answer = (await http.get("/admin/cache")).json()
    assert answer["levels"][0] == {
        "level": "device",
        "used_bytes": 1000,
        "capacity_bytes": 4000,
        "num_tokens": 100,
        "num_blocks": 4,
        "num_running_tokens": 30,
    }
    assert answer["levels"][1] == {"level": "host", "used_bytes": 1000, "capacity_bytes": 4000, "num_tokens": 64, "num_blocks": 2}
    assert answer["levels"][2]["num_blocks"] == 2
    assert [answer[name] for name in ("num_saved", "num_loaded", "num_written", "num_read")] == [5, 4, 3, 2]


async def test_show_without_levels_outside_the_device_and_without_an_engine() -> None:
    (device, _), (nothing, _) = connect(FakeCache(levels=None)), connect(FakeCache(levels=None, device_kv=None))
    async with device, nothing:
        assert [level["level"] for level in (await device.get("/admin/cache")).json()["levels"]] == ["device"]
        assert (await nothing.get("/admin/cache")).json()["levels"] == []


async def test_clear_with_and_without_the_disk() -> None:
    cache = FakeCache()
    http, _ = connect(cache)
    async with http:
        assert (await http.post("/admin/cache/clear", json={})).status_code == 200
        assert (await http.post("/admin/cache/clear", json={"disk": False})).status_code == 200
        assert (await http.post("/admin/cache/clear", json={"disc": True})).status_code == 400
    assert cache.cleared == [True, False]


async def test_clear_without_a_body_clears_every_level() -> None:
    cache = FakeCache()
    http, _ = connect(cache)

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    async with http:
        assert (await http.post("/admin/cache/clear")).status_code == 200
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await http.post("/admin/cache/clear", content=b"", headers=form)).status_code == 200
        assert (await http.post("/admin/cache/clear", content=nothing())).status_code == 200
        assert (await http.post("/admin/cache/clear", content=b" \n")).status_code == 200
        assert (await http.post("/admin/cache/clear", content=b"x")).status_code == 400
        assert (await http.post("/admin/cache/clear", content=b"{}", headers=form)).status_code == 415
    assert cache.cleared == [True, True, True, True]


async def test_the_cache_is_guarded_like_the_metrics_and_clearing_it_always() -> None:
    keys = ApiKeys([("alice", "key-of-alice")])
    closed, _ = connect(FakeCache(), keys)
    opened, _ = connect(FakeCache(), keys, is_metrics_open=True)
    async with closed, opened:
        assert (await closed.get("/admin/cache")).status_code == 401
        assert (await opened.get("/admin/cache")).status_code == 200
        assert (await opened.post("/admin/cache/clear", json={})).status_code == 401


async def test_a_tenant_does_not_clear_what_others_share() -> None:
    cache = FakeCache()
    http, _ = connect(cache, ApiKeys([("alice", "key-of-alice"), ApiKey("ops", "key-of-ops", is_admin=True)]))
    async with http:
        refused = await http.post("/admin/cache/clear", json={}, headers={"authorization": "Bearer key-of-alice"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
        assert "NAME KEY admin" in refused.json()["error"]["hint"]
        assert not cache.cleared
        assert (await http.get("/admin/cache", headers={"authorization": "Bearer key-of-alice"})).status_code == 200
        done = await http.post("/admin/cache/clear", json={}, headers={"authorization": "Bearer key-of-ops"})
        assert (done.status_code, cache.cleared) == (200, [True])


async def test_of_several_keys_none_may_clear_unless_marked_and_an_only_one_may() -> None:
    many, _ = connect(FakeCache(), ApiKeys([("alice", "key-of-alice"), ("bob", "key-of-bob")]))
    one, _ = connect(FakeCache(), ApiKeys([("alice", "key-of-alice"), ("again", "key-of-alice")]))
    async with many, one:
        for http, status in ((many, 403), (one, 200)):
            headers = {"authorization": "Bearer key-of-alice"}
            assert (await http.post("/admin/cache/clear", json={}, headers=headers)).status_code == status


async def test_callers_share_kv_only_under_one_key_and_one_salt() -> None:
    http, service = connect(FakeCache(), ApiKeys([("a", "key-of-alice"), ("b", "key-of-bob")]))
    async with http:
        for key, salt in (("key-of-alice", "s"), ("key-of-bob", "s"), ("key-of-alice", "t"), ("key-of-alice", "s")):
            body = {**HELLO, "cache_salt": salt}
            assert (await http.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"})).status_code == 200
    spaces = [call.options.cache_salt for call in service.calls]
    assert spaces[0] == spaces[3] == namespace(tenant_of("key-of-alice"), "s")
    assert len(set(spaces)) == 3
    assert not any("key-of" in space for space in spaces)


async def test_without_keys_the_salt_alone_decides() -> None:
    http, service = connect(FakeCache())
    async with http:
        await http.post(CHAT, json={**HELLO, "cache_salt": "s"})
    assert service.calls[0].options.cache_salt == "s"
