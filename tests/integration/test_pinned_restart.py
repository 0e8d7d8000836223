"""Pinned prompts of a real server: there at the start, after a crash of the engine, and after a clear."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.integration.test_kv_restart import SMALL, STORY, ask, num_not_cached, post, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
NUM_NEW_TOKENS = 64
"""More than the question and the short piece before it, which may be cheaper to compute; far less than the story."""


def test_pinned_prompts_come_back(serve, model_path):
    server = serve(model_path, **{**SMALL, "engine__kv_disk_bytes": 0}, model__pinned_prompts=json.dumps([STORY]))

    def wait_until_computed(num_times: int) -> None:
        wait_until(lambda: server.stderr.count("tokens of pinned prompts are computed") == num_times)

    def is_pinned(question: str) -> bool:
        """Ask once only: the answer leaves the story in the cache, too."""
        messages = [{"role": "system", "content": STORY}, {"role": "user", "content": question}]
        return num_not_cached(ask(server, messages)) < NUM_NEW_TOKENS

    wait_until_computed(1)
    assert is_pinned("How many ships on day 3?")
    os.kill(server.engine_pid, signal.SIGKILL)
    wait_until_computed(2)
    assert is_pinned("And on day 4?")
    post(f"{server.url}/admin/cache/clear", {})
    wait_until_computed(3)
    assert is_pinned("And on day 5?")
