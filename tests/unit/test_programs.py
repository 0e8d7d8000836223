"""Tests that need a program from outside are never left out unseen where it is required."""

import subprocess
import sys

import pytest
from tests import programs


def test_without_a_program_the_reason_names_its_package(monkeypatch):
    monkeypatch.setattr(programs.shutil, "which", lambda name, path=None: None)
    assert programs.missing_reason("promtool") == "promtool is not installed (Debian, Ubuntu: apt install prometheus)"


def test_required_are_those_that_the_environment_names():
    environ = {programs.REQUIRED: "promtool node"}
    assert [programs.is_required(name, environ) for name in ("promtool", "node", "chromium")] == [True, True, False]
    assert not programs.is_required("promtool", {})


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("openssl", "1 error")])
def test_a_missing_program_skips_or_fails(tmp_path, required, outcome):
    file = tmp_path / "test_it.py"
    file.write_text("import pytest\n\n@pytest.mark.needs_program('openssl')\ndef test_it():\n    assert False\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-q", "-rs", "--rootdir", str(tmp_path), str(file)]
    environ = {"PATH": "", programs.REQUIRED: required, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert outcome in done.stdout
    assert "openssl is not installed" in done.stdout
