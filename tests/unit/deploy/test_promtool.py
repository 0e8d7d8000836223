"""Prometheus' own tool checks the rule file, its example configuration and the logic of the alerts."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "prometheus"
TESTS = sorted((Path(__file__).parent / "promtool").glob("*.yml"))
PROMTOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian, Ubuntu: apt install prometheus)")


def promtool(*arguments):
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid():
    promtool("check", "rules", "--lint-fatal", DEPLOY / "ultrafast.rules.yml")


def test_the_example_configuration_is_valid():
    promtool("check", "config", DEPLOY / "prometheus.yml")


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_the_alerts_fire_when_they_should(file):
    promtool("test", "rules", file)
