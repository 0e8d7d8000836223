"""What a child is told about waiting at barriers."""

from __future__ import annotations

import pytest

from ultrafast.engine.process import child_environment


def test_its_compute_threads_do_not_spin_for_longer_than_a_time_slice() -> None:
    environment = child_environment({"HOME": "/root"})
    assert environment["HOME"] == "/root"
    assert 0 < int(environment["GOMP_SPINCOUNT"]) <= 20_000
    assert 0 < int(environment["KMP_BLOCKTIME"]) <= 200


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "passive")])
def test_what_the_operator_said_about_it_stands(name: str, value: str) -> None:
    environment = child_environment({name: value})
    assert environment[name] == value
    assert name == "GOMP_SPINCOUNT" or "GOMP_SPINCOUNT" not in environment


def test_where_there_are_more_threads_than_cores_they_turn_at_barriers_too() -> None:
    """As inside of a suspended pass: libgomp puts them to sleep at nearly every barrier otherwise."""
    assert child_environment({})["OMP_WAIT_POLICY"] == "active"


def test_a_step_begins_inside_of_a_suspended_pass_with_threads_of_its_own() -> None:
    assert int(child_environment({})["OMP_MAX_ACTIVE_LEVELS"]) >= 2
    assert child_environment({"OMP_MAX_ACTIVE_LEVELS": "1"})["OMP_MAX_ACTIVE_LEVELS"] == "1"
