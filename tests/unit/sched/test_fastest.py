"""The best that was ever seen: it only ever gets better, and rules out nothing that it does not know."""

from __future__ import annotations

import pytest

from ultrafast.sched.fastest import Fastest

STEP_TOKENS = 256


def test_what_is_not_known_counts_as_free() -> None:
    best = Fastest()
    assert (best.output_s, best.first_token_s(1000, STEP_TOKENS)) == (0.0, 0.0)
    best.observe(0, 64, 0.5)
    assert best.output_s == 0.0, "no step has drawn a token"
    assert best.first_token_s(64, STEP_TOKENS) == pytest.approx(0.5)


@pytest.mark.parametrize(("num_outputs", "num_prefill_tokens"), [(8, 0), (1, 64), (8, 64), (0, 256)])
def test_a_slow_or_mixed_step_changes_nothing(num_outputs: int, num_prefill_tokens: int) -> None:
    best = Fastest()
    best.observe(1, 0, 0.01)
    best.observe(1, 256, 0.5)
    before = best.output_s, best.first_token_s(1000, STEP_TOKENS)
    assert before == (0.01, pytest.approx(1000 * 0.5 / 256))
    best.observe(num_outputs, num_prefill_tokens, 2.0)
    assert (best.output_s, best.first_token_s(1000, STEP_TOKENS)) == before


def test_a_first_token_takes_a_step() -> None:
    """Where tokens seem to cost nothing (a GPU), the step itself is the bound."""
    best = Fastest()
    best.observe(1, 1024, 0.02)
    best.observe(1, 0, 0.012)
    assert best.first_token_s(4, 2048) == 0.012


@pytest.mark.parametrize(("num_tokens", "is_known"), [(64, True), (128, True), (129, False), (4000, False)])
def test_small_chunks_do_not_tell_what_large_ones_cost(num_tokens: int, is_known: bool) -> None:
    best = Fastest()
    best.observe(1, 0, 0.01)
    best.observe(1, 32, 0.4)
    expected_s = num_tokens * 0.4 / 32 if is_known else best.output_s
    assert best.first_token_s(num_tokens, STEP_TOKENS) == pytest.approx(expected_s)
    best.observe(1, 64, 0.8)
    assert best.first_token_s(4000, STEP_TOKENS) == pytest.approx(4000 * 0.4 / 32), "a step could not be much larger"
