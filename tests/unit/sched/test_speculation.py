"""The parts of speculation: look-up, acceptance, step times, choice, and when a request stops guessing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.sched.speculation.acceptance import Acceptance
from ultrafast.sched.speculation.choice import Offer, choose_lengths
from ultrafast.sched.speculation.ngrams import MAX_MATCH, MIN_MATCH, Continuation, NgramIndex
from ultrafast.sched.speculation.step_times import StepTimes
from ultrafast.sched.speculation.track import MAX_DRAFTS, Track, kind_of
from ultrafast.sched.speculation.trust import MAX_MISSES, MIN_PAUSE


def find(tokens: list[int], count: int = 4) -> Continuation | None:
    return NgramIndex().find(tokens, count)


def test_the_continuation_of_the_repeated_ending_is_found() -> None:
    assert find([1, 2, 3, 4, 5, 6, 7, 9, 2, 3, 4]) == Continuation((5, 6, 7, 9), 3)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 4, 2, 3], [1, 2, 9, 1, 2]])
def test_without_a_repeated_ending_there_is_none(tokens: list[int]) -> None:
    assert find(tokens) is None


def test_the_longest_match_wins_over_a_later_one() -> None:
    assert find([7, 1, 2, 3, 50, 60, 8, 1, 2, 3, 51, 61, 7, 1, 2, 3], 2) == Continuation((50, 60), 4)


def test_among_equal_matches_the_latest_wins() -> None:
    assert find([8, 1, 2, 3, 50, 9, 1, 2, 3, 51, 10, 1, 2, 3], 1) == Continuation((51,), 3)


def test_a_loop_goes_on_with_itself() -> None:
    assert find([1, 2, 3, 1, 2, 3], 8) == Continuation((1, 2, 3, 1, 2, 3, 1, 2), 3)


def test_a_match_is_counted_up_to_the_limit() -> None:
    found = find([*range(100, 130), 7, *range(100, 130)], 1)
    assert found == Continuation((7,), MAX_MATCH)


def test_no_more_tokens_than_asked_for() -> None:
    assert find([1, 2, 3, 4, 1, 2, 3], 0) is None
    assert find([1, 2, 3, 4, 1, 2, 3], 1) == Continuation((4,), 3)


def test_a_long_text_is_indexed_over_several_calls() -> None:
    index, tokens = NgramIndex(), [*range(3000), 5, 6, 7]
    answers = [index.find(tokens, 2) for _ in range(4)]
    assert answers == [None, None, Continuation((8, 9), 3), Continuation((8, 9), 3)]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8))
def test_growing_and_whole_texts_give_the_same_and_every_find_is_true(tokens: list[int], count: int) -> None:
    index = NgramIndex()
    for end in range(1, len(tokens) + 1):
        found = index.find(tokens[:end], count)
    if not tokens:
        return
    assert found == find(tokens, count)
    if found is not None:
        assert MIN_MATCH <= found.num_matched <= MAX_MATCH
        assert len(found.tokens) == count
        ending = tokens[-found.num_matched :]
        places = [i for i in range(found.num_matched, len(tokens)) if tokens[i - found.num_matched : i] == ending]
        assert any((tokens[i:] + list(found.tokens))[:count] == list(found.tokens) for i in places)


def test_acceptance_moves_from_belief_to_experience_by_kind() -> None:
    acceptance = Acceptance((0.6, 0.85, 0.95))
    assert [acceptance.probability(kind) for kind in range(3)] == pytest.approx([0.6, 0.85, 0.95])
    for _ in range(30):
        acceptance.observe(0, 4, 4)
        acceptance.observe(2, 4, 0)
    assert acceptance.probability(0) > 0.9
    assert acceptance.probability(2) < 0.6
    assert acceptance.probability(1) == pytest.approx(0.85)


def test_longer_matches_are_other_kinds_and_trusted_more() -> None:
    kinds = [kind_of(Continuation((1,), length)) for length in (3, 4, 5, 7, 8, 12)]
    assert kinds == [0, 0, 1, 1, 2, 2]
    beliefs = [Track().probability(kind) for kind in range(3)]
    assert beliefs == sorted(beliefs)


def test_step_times_are_interpolated_and_follow_slowly() -> None:
    times = StepTimes()
    times.observe(1, 0.0)
    assert times.measured_s(1) is None
    times.observe(1, 0.010)
    times.observe(9, 0.050)
    assert times.predict_s(5) == pytest.approx(0.030)
    assert 0.05 < times.predict_s(12) < 0.06
    times.observe(9, 5.0)
    assert times.predict_s(9) == pytest.approx(0.055)
    for _ in range(100):
        times.observe(9, 0.2)
    assert times.predict_s(9) == pytest.approx(0.2, rel=0.01)


def test_free_rows_take_all_drafts_and_dear_rows_none() -> None:
    offer = Offer(8, 0.9)
    assert choose_lengths([offer], 1, 8, 1.0, lambda _: 0.01).lengths == [8]
    assert choose_lengths([offer], 1, 8, 1.0, lambda rows: 0.01 * rows).lengths == [0]


def test_a_step_in_the_rows_is_stepped_over() -> None:
    """Two rows cost as much as five: either no draft, or as many as fit under the step."""
    seconds = {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0, 5: 2.0, 6: 4.0, 7: 4.0, 8: 4.0, 9: 4.0}
    assert choose_lengths([Offer(8, 0.9)], 1, 8, 9.0, seconds.__getitem__).lengths == [4]
    assert choose_lengths([Offer(8, 0.5)], 1, 8, 9.0, seconds.__getitem__).lengths == [0]


def test_room_and_time_bound_the_drafts() -> None:
    assert choose_lengths([Offer(8, 0.9)], 1, 3, 1.0, lambda _: 0.01).lengths == [3]
    assert choose_lengths([Offer(8, 0.9)], 1, 0, 1.0, lambda _: 0.01).lengths == [0]
    assert choose_lengths([Offer(8, 0.9)], 1, 8, 0.0125, lambda rows: 0.01 + 0.001 * (rows - 1)).lengths == [2]


def test_the_surer_request_gets_more() -> None:
    lengths = choose_lengths([Offer(8, 0.95), Offer(8, 0.5)], 3, 6, 1.0, lambda rows: 0.01 + 0.0005 * rows).lengths
    assert lengths[0] > lengths[1]
    assert sum(lengths) <= 6


REPEATING = [1, 2, 3, 4, 1, 2, 3]


def test_misses_silence_a_request_until_a_pause_has_passed() -> None:
    track = Track()
    for _ in range(MAX_MISSES):
        assert track.look_up(REPEATING, MAX_DRAFTS) is not None
        track.observe(0, 4, 0)
    assert track.is_off
    answers = [track.look_up(REPEATING, MAX_DRAFTS) for _ in range(MIN_PAUSE + 1)]
    assert answers[:-1] == [None] * MIN_PAUSE
    assert answers[-1] is not None
    assert track.probability(0) == Track().probability(0)


def test_each_pause_is_longer_than_the_last() -> None:
    track, pauses = Track(), []
    for _ in range(6):
        for _ in range(MAX_MISSES):
            track.observe(0, 4, 0)
        pauses.append(0)
        while track.is_off:
            track.look_up(REPEATING, MAX_DRAFTS)
            pauses[-1] += 1
    assert pauses == [32, 64, 128, 256, 512, 512]


def test_drafts_that_are_right_but_slow_silence_it_too() -> None:
    track = Track()
    for _ in range(8):
        track.observe(0, 4, 4)
        track.observe_gain(plain_s=1.0, spent_s=1.0)
    assert track.is_off


def test_drafts_that_pay_keep_it_on() -> None:
    track = Track()
    for _ in range(50):
        track.observe(0, 4, 2)
        track.observe_gain(plain_s=1.2, spent_s=1.0)
    assert not track.is_off
