"""`make serve` fetches the bundled model where that is what the server will serve, and only there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs_program("make")

ROOT = Path(__file__).parents[2]
PULL = "models pull smollm2-135m-instruct"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that is up to date, whose `ultrafast` only writes down how it was called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ultrafast").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    for stamp in (".stamp-created", ".stamp-runtime"):
        (tmp_path / stamp).touch()
    return tmp_path


def calls_of(venv: Path, arguments: str, **environment: str) -> list[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ULTRAFAST_", "MAKE", "MFLAGS"))}
    make = shutil.which("make")
    assert make is not None
    subprocess.run(
        [make, "--silent", "serve", f"VENV={venv}", f"ARGS={arguments}"],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT / "src"), **environment},
        check=True,
        timeout=60,
    )
    return (venv / "calls").read_text().splitlines()


@pytest.mark.parametrize(
    "arguments", ["", "--port 9000 --json", "--set model.served_name=--model", "--model SmolLM2-135M-Instruct"]
)
def test_the_bundled_model_is_fetched(venv: Path, arguments: str) -> None:
    assert calls_of(venv, arguments) == [PULL, f"serve {arguments}".strip()]


@pytest.mark.parametrize(
    "arguments", ["--model my.gguf", "--set model.path_or_name=my.gguf", "--config {venv}/own.toml", "--help"]
)
def test_nothing_is_fetched_for_another_model(venv: Path, arguments: str) -> None:
    (venv / "own.toml").write_text('[model]\npath_or_name = "my.gguf"\n')
    arguments = arguments.format(venv=venv)
    assert calls_of(venv, arguments) == [f"serve {arguments}"]


def test_the_environment_chooses_too(venv: Path) -> None:
    assert calls_of(venv, "", ULTRAFAST_MODEL__PATH_OR_NAME="my.gguf") == ["serve"]
