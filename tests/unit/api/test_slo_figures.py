"""What a completed call of several choices is judged by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ultrafast.api.generation import Generation
from ultrafast.api.slo import _figures
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder
from ultrafast.observe.slo import MissReason, Objectives, miss_reason
from ultrafast.serving.contract import Completed, Timings, Usage


def _call(*deltas: tuple[int, int, float], timings: Timings) -> Generation:
    recorder = Recorder(Metrics()).begin_call(0.0, ServiceTier.DEFAULT)
    for index, num_tokens, at_s in deltas:
        recorder.on_delta(index, num_tokens, at_s)
    recorder.fold()
    generation = Generation(cast("Any", SimpleNamespace(arrival_s=0.0)), cast("Any", None), recorder, cast("Any", None), None)
    generation.completed = Completed(Usage(7, recorder.num_tokens, 0), timings)
    return generation


def test_a_slow_engine_is_found_by_the_choice_that_was_slow() -> None:
    """Choice 0 got 5 tokens in 10 s of computation, choice 1 400 of them: the call as a whole looks fast."""
    timings = Timings(0.0, 10.5, 0.5, 0.5, decode_s=(10.0, 10.0))
    figures = _figures(_call((0, 1, 0.5), (1, 1, 0.5), (0, 4, 10.6), (1, 399, 10.6), timings=timings), 10.7)
    assert figures.tpot_s == (10.6 - 0.5) / 4
    assert figures.compute_tpot_s == 10.0 / 4
    assert miss_reason(figures, Objectives(ttft_s=1.0, tpot_s=0.5)) is MissReason.STEP


def test_a_slow_reader_is_not_blamed_on_the_engine() -> None:
    timings = Timings(0.0, 1.5, 0.5, 0.5, decode_s=(1.0, 0.1))
    figures = _figures(_call((0, 1, 0.5), (1, 1, 0.5), (1, 9, 0.7), (0, 4, 10.6), timings=timings), 10.7)
    assert miss_reason(figures, Objectives(ttft_s=1.0, tpot_s=0.5)) is MissReason.OUTPUT


def test_an_echo_before_the_only_token_divides_by_nothing() -> None:
    timings = Timings(0.0, 0.5, 0.5, 0.5, decode_s=(0.0,))
    assert _figures(_call((0, 0, 0.1), (0, 1, 0.5), timings=timings), 0.6).compute_tpot_s == 0.0
