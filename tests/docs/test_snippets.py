"""Code blocks in the documents run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.documents import DEFAULT_URL, Snippet, read_snippets

RUNNABLE = [snippet for snippet in read_snippets() if snippet.language in ("bash", "python")]
TIMEOUT_S = 90


def run(snippet: Snippet, folder: Path, url: str | None) -> None:
    code = snippet.code.replace(DEFAULT_URL, url) if url else snippet.code
    command = ["bash", "-euo", "pipefail", "-c", code] if snippet.language == "bash" else [sys.executable, "-c", code]
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | ({"ULTRAFAST_URL": url} if url else {})
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{snippet}\n{done.stdout}\n{done.stderr}"
    assert done.stdout, f"{snippet} printed nothing"
    assert '"error":' not in done.stdout, f"{snippet}\n{done.stdout}"


@pytest.mark.integration
@pytest.mark.parametrize("snippet", [snippet for snippet in RUNNABLE if not snippet.needs_server], ids=str)
def test_snippet(snippet, tmp_path, model_path):
    run(snippet, tmp_path, None)


@pytest.mark.integration
@pytest.mark.parametrize("snippet", [snippet for snippet in RUNNABLE if snippet.needs_server], ids=str)
def test_snippet_with_a_server(snippet, tmp_path, shared_server):
    run(snippet, tmp_path, shared_server.url)


def test_there_are_snippets_of_both_kinds():
    assert {snippet.needs_server for snippet in RUNNABLE} == {True, False}
