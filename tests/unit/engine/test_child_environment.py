"""What a child is told about waiting at barriers."""

from __future__ import annotations

import pytest

from ultrafast.engine.process import child_environment


def test_its_compute_threads_do_not_spin_for_longer_than_a_time_slice() -> None:
    environment = child_environment({"HOME": "/root"})
    assert environment["HOME"] == "/root"
    assert 0 < int(environment["GOMP_SPINCOUNT"]) <= 20_000


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "active")])
def test_what_the_operator_said_about_it_stands(name: str, value: str) -> None:
    assert child_environment({name: value}) == {name: value}
