"""When a greedy output counts as that of plain greedy decoding."""

from __future__ import annotations

import math

import pytest

from ultrafast.bench.greedy_run import MARGIN, Agreement, GreedyRun

PLAIN = GreedyRun("abcdef", [8.1, 0.4, 3.0, 0.2, MARGIN, 6.1])


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("abcdef", Agreement(4, 4, 2, 0)),
        ("abcxyz", Agreement(2, 2, 2, 2)),  # parts at a near-tie: nothing is known of the rest
        ("axcdef", Agreement(1, 1, 1, 4)),
        ("xbcdef", Agreement(1, 0, 0, 5)),  # parts where the lead was clear: wrong
        ("abcdxf", Agreement(3, 2, 2, 1)),  # a lead of exactly the margin is clear
        ("abcde", Agreement(4, 3, 2, 0)),  # cut short
        ("abcdefg", Agreement(5, 4, 2, 0)),  # too long
        ("", Agreement(1, 0, 0, 5)),
    ],
)
def test_each_position_is_compared_filtered_or_unknown(other: str, found: Agreement) -> None:
    assert PLAIN.compare(other) == found
    assert found.num_compared + found.num_filtered + found.num_unknown == max(len(other), 6)


@pytest.mark.parametrize(
    ("other", "is_right"), [("abcdef", True), ("abcx", True), ("abc", True), ("abcdefg", True), ("abx", False)]
)
def test_agreement_as_far_as_both_go(other: str, is_right: bool) -> None:
    assert PLAIN.agrees_with(other) is is_right


def test_a_share_of_nothing_is_no_number() -> None:
    assert math.isnan(Agreement(num_filtered=3).percent)
    assert (Agreement(3, 2) + Agreement(1, 1, 5, 6)).percent == 75.0
    assert Agreement(3, 2) + Agreement(1, 1, 5, 6) == Agreement(4, 3, 5, 6)
