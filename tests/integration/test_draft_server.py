"""A whole server with a draft model: refused before anything starts when it does not fit, and else just there."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

import pytest
from tests.unit.models.gguf_builder import build

pytestmark = pytest.mark.integration


def test_a_draft_model_with_another_vocabulary_stops_the_start(model_path, sliding_window_model_path):
    command = [sys.executable, "-m", "ultrafast.cli.main", "serve", "--port", "0", "--model", str(model_path)]
    command += ["--set", f"engine.draft_model_path={sliding_window_model_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has another vocabulary than the model: 262144 tokens instead of 49152" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: ")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("nowhere.gguf", None, "there is no such file"),
        ("text.gguf", b"hello", "not a GGUF file"),
        ("tiny.gguf", build(), "vocabulary"),
    ],
)
def test_a_draft_model_that_is_none_stops_the_start(model_path, tmp_path, name, content, reason):
    draft = tmp_path / name
    if content is not None:
        draft.write_bytes(content)
    command = [sys.executable, "-m", "ultrafast.cli.main", "serve", "--port", "0", "--model", str(model_path)]
    command += ["--set", f"engine.draft_model_path={draft}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: The draft model: " in done.stderr
    assert str(draft) in done.stderr
    assert reason in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: ")


def test_a_server_with_a_draft_model_answers_and_tells_its_figures(serve, model_path):
    settings: dict[str, object] = {"engine__kv_capacity_tokens": 1024, "engine__max_num_running": 4, "engine__num_threads": 1}
    settings["model__served_name"] = "any"
    server = serve(model_path, engine__draft_model_path=model_path, engine__threadpool_poll=0, **settings)
    body = json.dumps({"model": "any", "prompt": "The sea", "max_tokens": 40, "temperature": 0}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["usage"]["completion_tokens"] > 0
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as response:
        figures = response.read().decode()
    assert 'ultrafast_spec_drafted_tokens_total{source="draft"}' in figures
    assert 'ultrafast_spec_gain{source="ngram"}' in figures
