"""The same deterministic request, alone and beside seven others, through a real server: the same text and log-probabilities."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SMALL = {
    "engine__kv_capacity_tokens": 2048,
    "engine__max_request_tokens": 512,
    "engine__max_num_running": 8,
    "engine__num_threads": 1,
    "engine__threadpool_poll": 0,
    "engine__deterministic": "on",
}


def complete(server, **fields) -> dict:
    body = {"model": "m", "prompt": "The lighthouse keeper counts", "max_tokens": 12, "temperature": 0.9, "logprobs": 3, **fields}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read())["choices"][0]


def test_a_deterministic_request_repeats_beside_others(serve, model_path):
    server = serve(model_path, model__served_name="m", **SMALL)
    alone = complete(server, deterministic=True)
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(complete, server, prompt=f"Ship number {i} sails", seed=i, max_tokens=24) for i in range(7)]
        beside = pool.submit(complete, server, deterministic=True).result()
        assert all(other.result()["text"] for other in others)
    assert beside == alone
