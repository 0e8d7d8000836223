"""What `ultrafast chat` shows about an answer."""

import io

import pytest

from ultrafast.cli.answer import Answer
from ultrafast.cli.http_client import read_events
from ultrafast.core.clock import ManualClock


def chunk(text, **more):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "service_tier": "default"} | more


def test_times_and_rate():
    clock = ManualClock()
    shown = []
    answer = Answer(shown.append, clock)
    answer.add({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    clock.advance(0.25)
    answer.add(chunk("Hel"))
    clock.advance(0.5)
    answer.add(chunk("lo"))
    answer.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    answer.add(
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}}
    )
    assert shown == ["Hel", "lo"]
    assert answer.text == "Hello"
    assert answer.ttft_s == 0.25
    assert answer.tokens_per_s == 10.0
    assert answer.summary() == "TTFT 250 ms | 10.0 tokens/s | 6 tokens | prompt 7, cached 4 | tier default | stop"


def test_an_answer_without_text_has_no_times():
    answer = Answer(clock=ManualClock())
    assert answer.summary().startswith("no text")
    assert answer.as_json()["ttft_ms"] is None
    assert answer.as_json()["tokens_per_s"] is None


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: {}\n\ndata: [DONE]\n\n", ["{}", "[DONE]"]),
        (b": ping\n\ndata: a\r\n\r\n: ping\n\n", ["a"]),
        (b"event: x\ndata:a\ndata: b\n\n", ["a\nb"]),
        ("data: 你好\n\n".encode(), ["你好"]),
        (b"data: unfinished\n", []),
    ],
)
def test_server_sent_events(raw, events):
    assert list(read_events(io.BytesIO(raw))) == events  # type: ignore[arg-type]
