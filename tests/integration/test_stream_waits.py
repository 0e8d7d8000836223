"""What a stream says while it waits: nothing without a place in the engine, comments with one."""

import http.client
import json

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
ONE_PLACE = {
    "engine__kv_capacity_tokens": 4096,
    "engine__max_num_running": 1,
    "engine__max_step_tokens": 64,
    "engine__num_threads": 1,
    "engine__threadpool_poll": 0,
    "server__keepalive_interval_s": 0.05,
    "model__served_name": "tiny",
}


def stream(
    server, content: str, headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 2000,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **(headers or {})})
    return connection, connection.getresponse()


def test_a_stream_without_a_place_is_refused_with_its_status_and_one_with_a_place_is_kept_alive(serve, model_path):
    server = serve(model_path, **ONE_PLACE)
    holder, running = stream(server, "Count.")
    assert running.status == 200
    # Many intervals of comments long.
    waiter, refused = stream(server, "Hi.", {"x-queue-ttl-ms": "700"})
    assert refused.status == 429
    assert refused.getheader("x-ultrafast-drop-reason") == "queue_timeout"
    assert int(refused.getheader("retry-after-ms")) > 0
    assert json.loads(refused.read())["error"]["code"] == "queue_timeout"
    waiter.close()
    holder.close()

    reader, late = stream(server, "word " * 1500)
    assert late.status == 200
    assert late.getheader("x-ultrafast-tier-served") == "default"
    assert late.getheader("server-timing").startswith("queue;dur=")
    assert late.readline() == b": ping\n"
    reader.close()
