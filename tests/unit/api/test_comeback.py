"""When clients come back that found no capacity: never too soon, and evenly however many they are."""

from __future__ import annotations

import pytest

from ultrafast.api.comeback import MIN_WAIT_S, comeback_s
from ultrafast.api.errors import MAX_RETRY_AFTER_S


@pytest.mark.parametrize(("estimate_s", "first_s", "last_s"), [(0.0, 1.0, 3.0), (10.0, 10.0, 15.0), (500.0, 80.0, 120.0)])
@pytest.mark.parametrize("num_clients", [10, 100, 1000])
def test_clients_are_spread_evenly_over_what_follows_the_estimate(
    estimate_s: float, first_s: float, last_s: float, num_clients: int
) -> None:
    waits = sorted(comeback_s(estimate_s) for _ in range(num_clients))
    assert MIN_WAIT_S <= first_s <= waits[0]
    assert waits[-1] <= last_s <= MAX_RETRY_AFTER_S
    gaps = [later - sooner for sooner, later in zip([first_s, *waits], [*waits, last_s], strict=True)]
    assert max(gaps) < 3 * (last_s - first_s) / num_clients
