"""How long a load will still take is said from what was measured, or not at all."""

from __future__ import annotations

import pytest

from ultrafast.engine.load_progress import LoadProgress
from ultrafast.engine.messages import Loading


def test_a_stage_goes_on_as_fast_as_it_went() -> None:
    load = LoadProgress()
    assert load.left_s(0.0) is None
    load.begin(100.0)
    load.note(Loading("weights", 0.0), 101.0)
    assert load.left_s(102.0) is None, "one look tells no speed"
    load.note(Loading("weights", 0.01), 102.0)
    assert load.left_s(102.0) is None, "too little to tell"
    load.note(Loading("weights", 0.25), 106.0)
    assert load.left_s(106.0) == pytest.approx(15.0)
    assert load.left_s(110.0) == pytest.approx(11.0), "time goes on without progress"
    assert load.left_s(500.0) == 0.0
    load.note(Loading("warm-up", 0.1), 130.0)
    assert load.left_s(130.0) is None
    load.note(Loading("warm-up", 0.6), 140.0)
    assert load.left_s(140.0) == pytest.approx(8.0)
    load.end(148.0)
    assert load.left_s(149.0) is None


def test_the_time_of_the_load_before_counts_where_it_says_more() -> None:
    load = LoadProgress()
    load.begin(0.0)
    load.end(30.0)
    load.begin(100.0)
    assert load.left_s(110.0) == 20.0
    load.note(Loading("weights", 0.0), 110.0)
    load.note(Loading("weights", 0.5), 111.0)
    assert load.left_s(111.0) == 19.0, "stages that have not begun are in it"
    load.note(Loading("weights", 0.6), 140.0)
    assert load.left_s(140.0) == pytest.approx(20.0)
