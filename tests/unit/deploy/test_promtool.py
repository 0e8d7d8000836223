"""Prometheus' own tool checks the rule file, its example configuration and the logic of the alerts."""

import subprocess
from pathlib import Path

import pytest
from tests.programs import find_program

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "prometheus"
TESTS = sorted((Path(__file__).parent / "promtool").glob("*.yml"))

pytestmark = pytest.mark.needs_program("promtool")


def promtool(*arguments):
    done = subprocess.run(
        [find_program("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid():
    promtool("check", "rules", "--lint-fatal", DEPLOY / "ultrafast.rules.yml")


def test_the_example_configuration_is_valid():
    promtool("check", "config", DEPLOY / "prometheus.yml")


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_the_alerts_fire_when_they_should(file):
    promtool("test", "rules", file)
