"""The k6 script, run under Node with stand-ins for k6's modules: how it reads an answer and what it counts."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.programs import find_program

from ultrafast.config.settings import Settings
from ultrafast.core.tiers import ServiceTier

SCRIPT = Path(__file__).parents[3] / "deploy" / "k6" / "ultrafast.js"

pytestmark = pytest.mark.needs_program("node")
STAND_INS = """
const samples = [];
class Metric { constructor(name) { this.name = name; } add(value) { samples.push([this.name, Number(value)]); } }
const Counter = Metric, Rate = Metric, Trend = Metric;
const exec = { scenario: { name: "ultrafast", iterationInTest: 7 } };
const checks = {};
const check = (value, tests) => { for (const [name, test] of Object.entries(tests)) checks[name] = test(value); };
const __ENV = { TIER: "ultrafast", TTFT_FLEX: "9000", KEY: "secret-key" };
const given = JSON.parse(process.argv[1]);
const sent = [];
const http = { post: (url, body, params) => { sent.push([url, JSON.parse(body), params]); return given; } };
"""


def event(**fields):
    return "data: " + json.dumps({"service_tier": "ultrafast", **fields}) + "\n\n"


def delta(text):
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


USAGE = event(choices=[], usage={"completion_tokens": 5})
FINISH = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
WHOLE = delta("a") + delta("b") + FINISH + USAGE + "data: [DONE]\n\n"
HEADERS = {"Server-Timing": "queue;dur=1.5, prefill;dur=12"}


def ask(body, status=200, headers=None):
    source = re.sub(r"^import .*$", "", SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("export ", "")
    answer = {"status": status, "body": body, "headers": headers or HEADERS, "timings": {"waiting": 20, "receiving": 40}}
    tail = "ask(); console.log(JSON.stringify({ samples, checks, sent, options }));"
    done = subprocess.run(
        [find_program("node"), "-e", STAND_INS + source + tail, json.dumps(answer)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_whole_answer_is_timed():
    seen = ask(WHOLE)
    assert dict(seen["samples"]) == {
        "ultrafast_failed": 0,
        "ultrafast_output_tokens": 5,
        "ultrafast_queue": 1.5,
        "ultrafast_prefill": 12,
        "ultrafast_ttft": 20,
        "ultrafast_tpot": 10,
    }
    assert set(seen["checks"].values()) == {True}
    url, body, params = seen["sent"][0]
    assert url == "http://127.0.0.1:8080/v1/chat/completions"
    assert (body["service_tier"], body["stream_options"]) == ("ultrafast", {"include_usage": True})
    assert params["headers"]["authorization"] == "Bearer secret-key"
    assert params["headers"]["x-request-priority"] == "ultrafast"
    assert params["tags"] == {"tier": "ultrafast"}


@pytest.mark.parametrize(
    "body",
    [
        delta("a") + USAGE,  # cut off
        delta("a") + 'data: {"error": {"message": "gone"}}\n\ndata: [DONE]\n\n',
        delta("a") + FINISH + "data: [DONE]\n\n",  # no usage: tokens unknown
    ],
    ids=["cut off", "error inside", "no usage"],
)
def test_what_is_not_whole_has_failed_and_is_not_timed(body):
    assert ask(body)["samples"] == [["ultrafast_failed", 1]]


def test_a_refusal_has_failed():
    assert ask('{"error": {"message": "full"}}', status=503)["samples"] == [["ultrafast_failed", 1]]


def test_a_first_byte_that_is_no_token_is_not_taken_for_one():
    samples = dict(ask(": ping\n\n" + WHOLE, headers={"Content-Type": "text/event-stream"})["samples"])
    assert samples["ultrafast_ttft_unknown"] == 1
    assert "ultrafast_ttft" not in samples


def test_thresholds_are_the_default_objectives():
    thresholds = ask(WHOLE)["options"]["thresholds"]
    assert thresholds["ultrafast_ttft{tier:ultrafast}"] == ["p(99)<=200"]
    assert thresholds["ultrafast_ttft{tier:flex}"] == ["p(99)<=9000"]
    text = SCRIPT.read_text(encoding="utf-8")
    for tier in ServiceTier:
        targets = getattr(Settings().tiers, tier)
        assert f"{tier}: {{ ttft: {targets.ttft_ms:g}, tpot: {targets.tpot_ms:g} }}" in text
