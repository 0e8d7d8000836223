"""Models with sliding-window layers on a real server: the second turn of a conversation is not computed from its beginning.

With `engine.swa_full` every prefix can be reused. Without it only where the window is still whole; the answers stay the same.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from tests.servers import RunningServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
MODEL = "gemma"
NUM_ANSWER_TOKENS = 12
MARGIN = 1.5
QUESTION = (
    "The keeper counted ships: " + ", ".join(f"{day * 7 % 30} on day {day}" for day in range(1, 12)) + ". How many on day 3?"
)


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + (m.content | trim) + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
"""The file is a base model's and has none."""


def ask(server: RunningServer, messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": NUM_ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        **options,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def assert_same_up_to_a_near_tie(alone: dict[str, Any], reused: dict[str, Any]) -> None:
    """Floats are added in another order, so two tokens that are nearly equally likely may swap places."""
    pairs = zip(*(answer["choices"][0]["logprobs"]["content"] for answer in (alone, reused)), strict=True)
    for i, (one, other) in enumerate(pairs):
        if one["token"] != other["token"]:
            first, second = (likely["logprob"] for likely in one["top_logprobs"])
            assert first - second < MARGIN, f"token {i}: {one['token']!r} became {other['token']!r}"
            return


@pytest.mark.parametrize("swa_full", [True, False], ids=["whole_context", "window_only"])
def test_the_second_turn_is_not_computed_from_its_beginning(serve, sliding_window_model_path, tmp_path, swa_full: bool) -> None:
    template = tmp_path / "gemma.jinja"
    template.write_text(TEMPLATE)
    server = serve(
        sliding_window_model_path,
        model__served_name=MODEL,
        model__chat_template_file=template,
        model__begins_next_turns=False,
        engine__swa_full=swa_full,
        engine__kv_capacity_tokens=1024,
        engine__max_num_running=1,
        engine__max_step_tokens=64,
        engine__kv_host_bytes=0,  # what is reused was still on the device
        engine__num_threads=1,
        engine__threadpool_poll=0,
    )
    messages = [{"role": "user", "content": QUESTION}]
    first = ask(server, messages)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    messages += [first["choices"][0]["message"], {"role": "user", "content": "And on day 4?"}]
    second = ask(server, messages, logprobs=True, top_logprobs=2)
    num_first = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens"] > num_first > 100
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= num_first, "the first turn is in the cache"
    alone = ask(server, messages, logprobs=True, top_logprobs=2, cache="off")
    assert alone["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert_same_up_to_a_near_tie(alone, second)
