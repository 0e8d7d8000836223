"""The parts of guessing with a draft model: its books, its times, and what is chosen by these."""

from __future__ import annotations

import pytest

from ultrafast.core.draft import DraftPass
from ultrafast.sched.limits import DraftLimits
from ultrafast.sched.speculation.choice import Drafted, Offer, choose_lengths
from ultrafast.sched.speculation.draft_kv import DraftKv
from ultrafast.sched.speculation.draft_times import FIRST_READ_TOKENS, DraftTimes
from ultrafast.sched.speculation.gain import Gain


def books(capacity: int = 100, num_sequences: int = 2) -> DraftKv:
    return DraftKv(DraftLimits(capacity, num_sequences, capacity, 64))


def test_right_cells_are_those_that_were_read_or_confirmed() -> None:
    kv = books()
    assert kv.num_right("a") == 0
    assert kv.open("a", 25, ())
    kv.wrote("a", 20, 24)
    assert (kv.num_right("a"), kv.num_cells) == (20, 24)
    kv.confirm("a", 22)
    assert kv.num_right("a") == 22
    kv.confirm("a", 30)
    assert kv.num_right("a") == 24, "a guess that was never read is not there"


def test_room_promised_to_one_is_not_promised_to_another() -> None:
    kv = books(capacity=100)
    assert kv.open("a", 60, ("a", "b"))
    assert not kv.open("b", 60, ("a", "b"))
    assert kv.open("b", 40, ("a", "b"))
    kv.retain(("a", "b"))
    assert kv.open("b", 60, ("a", "b")), "promises are for one step"


def test_who_does_not_guess_now_gives_way() -> None:
    kv = books(num_sequences=2)
    for name in ("a", "b"):
        kv.open(name, 10, ())
        kv.wrote(name, 10, 10)
    assert not kv.open("c", 10, ("a", "b", "c"))
    assert kv.open("c", 10, ("b", "c"))
    assert (kv.num_right("a"), kv.num_right("b")) == (0, 10)
    assert kv.freed == (kv.seq_id("c"),)


def test_freed_sequences_are_named_until_they_are_empty() -> None:
    kv = books()
    kv.open("a", 10, ())
    kv.retain(())
    freed = kv.freed
    assert len(freed) == 1
    assert kv.freed == freed
    kv.emptied(freed)
    assert kv.freed == ()
    assert kv.num_cells == 0


def test_nothing_known_costs_nothing_so_that_somebody_tries() -> None:
    times = DraftTimes()
    assert times.drafting_s([Drafted(2, 4)]) == 0
    assert times.tokens_within(0.01) == FIRST_READ_TOKENS
    assert times.tokens_within(-0.01) == 0


def test_drafting_is_a_first_pass_that_reads_and_then_one_per_guess() -> None:
    times = DraftTimes()
    for num_tokens in (1, 2, 3, 4):
        times.observe(DraftPass(num_tokens, 0.001 * num_tokens))
    times.observe(DraftPass(100, 0.2))
    assert times.drafting_s([]) == 0
    assert times.drafting_s([Drafted(2, 1)]) == pytest.approx(0.002)
    assert times.drafting_s([Drafted(2, 4)]) == pytest.approx(0.002 + 3 * 0.001)
    assert times.drafting_s([Drafted(2, 3), Drafted(2, 2)]) == pytest.approx(0.004 + 0.002 + 0.001)
    assert times.drafting_s([Drafted(50, 1)]) == pytest.approx(0.1)
    assert times.tokens_within(0.05) == 25


def test_a_draft_model_pays_while_its_passes_are_cheap() -> None:
    def lengths(pass_s: float, probability: float = 0.8) -> list[int]:
        drafting_s = lambda work: pass_s * max((item.num_drafts for item in work), default=0)  # noqa: E731
        offers = [Offer(8, probability, num_unread=2)]
        return choose_lengths(offers, 1, 8, 1.0, lambda rows: 0.01 + 0.0002 * rows, drafting_s).lengths

    assert lengths(0.001)[0] >= 4
    assert 0 < lengths(0.003)[0] < lengths(0.001)[0]
    assert lengths(0.012) == [0]
    assert lengths(0.003, probability=0.1) == [0]


def test_only_guesses_of_the_model_cost_drafting() -> None:
    asked: list[list[Drafted]] = []

    def drafting_s(work: list[Drafted]) -> float:
        asked.append(list(work))
        return 1.0 if work else 0.0

    offers = [Offer(2, 0.9), Offer(2, 0.8, num_unread=5)]
    choice = choose_lengths(offers, 2, 8, 10.0, lambda _: 0.1, drafting_s)  # type: ignore[arg-type]
    assert choice.lengths == [2, 0]
    assert choice.gain == pytest.approx((2 + 0.9 + 0.81) / 2)
    assert [Drafted(5, 1)] in asked


def test_the_time_of_drafting_counts_against_the_limit() -> None:
    drafting_s = lambda work: 0.01 * max((item.num_drafts for item in work), default=0)  # noqa: E731
    offer = Offer(8, 0.95, num_unread=1)
    assert choose_lengths([offer], 1, 8, 0.135, lambda _: 0.1, drafting_s).lengths == [3]


def test_gain_is_the_time_without_over_the_time_with() -> None:
    gain = Gain()
    assert gain.value == 0
    gain.book(0.0, 0.0)
    assert gain.value == 0
    gain.book(0.3, 0.2)
    assert gain.value == pytest.approx(1.5)
    gain.book(0.0, 0.1)
    assert 0.95 < gain.value < 1.05
