"""KV on disk outlives the engine process and the server: after a kill the next turn of a conversation is not computed again."""

import json
import os
import signal
import time
import urllib.request

import pytest
from tests.servers import is_alive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SMALL = {
    "engine__kv_capacity_tokens": 2048,
    "engine__max_num_running": 4,
    "engine__max_step_tokens": 64,
    "engine__num_threads": 1,
    "engine__threadpool_poll": 0,
    "engine__kv_host_bytes": 64 << 20,
    "engine__kv_disk_bytes": 256 << 20,
}
STORY = " ".join(f"On day {day} the keeper counted {day * 7 % 30} ships and {day * 3 % 11} whales." for day in range(1, 16))
MESSAGES = [{"role": "system", "content": STORY}, {"role": "user", "content": "How many ships on day 3?"}]


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read())


def ask(server, messages: list[dict]) -> dict:
    model = json.loads(_get(f"{server.url}/v1/models"))["data"][0]["id"]
    return post(f"{server.url}/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0})


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def levels(server) -> dict:
    return {level["level"]: level for level in json.loads(_get(f"{server.url}/admin/cache"))["levels"]}


def wait_until(condition) -> None:
    deadline_s = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline_s, "never so"
        time.sleep(0.05)


def all_on_disk(server) -> bool:
    now = levels(server)
    return "disk" in now and now["disk"]["num_tokens"] == now["host"]["num_tokens"] > 200


def is_found_on_disk(server) -> bool:
    """The new engine has looked through the files."""
    now = levels(server)
    return "disk" in now and now["disk"]["num_tokens"] > 200


def next_turn(answer: dict) -> list[dict]:
    said = answer["choices"][0]["message"]["content"]
    return [*MESSAGES, {"role": "assistant", "content": said}, {"role": "user", "content": "And on day 4?"}]


def num_not_cached(answer: dict) -> int:
    usage = answer["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def test_a_killed_engine_and_a_killed_server_leave_the_cache(serve, model_path, tmp_path):
    settings = {**SMALL, "engine__kv_disk_path": str(tmp_path / "kv")}
    server = serve(model_path, **settings)
    first = ask(server, MESSAGES)
    assert num_not_cached(first) == first["usage"]["prompt_tokens"]
    wait_until(lambda: all_on_disk(server))

    engine = server.engine_pid
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not is_alive(engine) and server.engine_pid != engine)
    wait_until(lambda: is_found_on_disk(server))
    second = ask(server, next_turn(first))
    assert num_not_cached(second) < 64  # the short piece at the end may be cheaper to compute
    assert b'ultrafast_prefix_cache_hit_tokens_total{level="disk"}' in _get(f"{server.url}/metrics")

    server.is_expected_dead = True
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    other = serve(model_path, **settings)
    wait_until(lambda: is_found_on_disk(other))
    third = ask(other, next_turn(first))
    assert num_not_cached(third) < 64
    assert third["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"]

    post(f"{other.url}/admin/cache/clear", {})
    wait_until(lambda: levels(other)["disk"]["num_tokens"] == levels(other)["host"]["num_tokens"] == 0)
    wait_until(lambda: not list((tmp_path / "kv").rglob("*.kv")))  # deleted in the background, after it is forgotten
    fourth = ask(other, MESSAGES)
    assert num_not_cached(fourth) == fourth["usage"]["prompt_tokens"]
