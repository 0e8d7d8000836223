"""Names of beginnings: equal for equal beginnings under one key, and of no use without it."""

from ultrafast.kv.names import PrefixNames
from ultrafast.kv.run import RUN_TOKENS

NAMES, OTHERS = PrefixNames(b"k" * 32), PrefixNames(b"l" * 32)
A = list(range(3 * RUN_TOKENS + 5))


def test_each_whole_run_has_a_name_and_the_rest_has_none():
    assert len(NAMES.of(A)) == 3
    assert NAMES.of(A[: RUN_TOKENS - 1]) == []
    assert all(len(name) == 16 for name in NAMES.of(A))


def test_a_name_stands_for_everything_before_it():
    b = [*A[:RUN_TOKENS], 9, *A[RUN_TOKENS + 1 :]]
    assert NAMES.of(A)[0] == NAMES.of(b)[0]
    assert not set(NAMES.of(A)[1:]) & set(NAMES.of(b)[1:])


def test_names_can_be_made_one_run_at_a_time():
    first = NAMES.after(b"", A[:RUN_TOKENS])
    assert [first.hex(), NAMES.after(first, A[RUN_TOKENS : 2 * RUN_TOKENS]).hex()] == NAMES.of(A)[:2]


def test_another_key_gives_other_names():
    assert not set(NAMES.of(A)) & set(OTHERS.of(A))
    assert NAMES.of_space("alice") != OTHERS.of_space("alice")


def test_spaces_are_told_apart_and_not_named():
    assert NAMES.of_space("") == ""
    assert NAMES.of_space("alice") not in ("alice", NAMES.of_space("bob"))
