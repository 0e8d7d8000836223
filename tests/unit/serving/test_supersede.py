"""A newer call of a key ends the older one, and nobody else's."""

from __future__ import annotations

import pytest

from ultrafast.core.errors import SupersededError
from ultrafast.serving.supersede import Superseding


class _Stream:
    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_a_newer_call_aborts_the_older_one_of_the_same_key_only() -> None:
    superseding = Superseding()
    stream, other_stream = _Stream(), _Stream()
    with superseding.claim(("alice", "k")) as older, superseding.claim(("bob", "k")) as other:
        older.watch([stream])  # type: ignore[list-item]
        other.watch([other_stream])  # type: ignore[list-item]
        with superseding.claim(("alice", "k")) as newer:
            assert (stream.is_aborted, other_stream.is_aborted) == (True, False)
            with pytest.raises(SupersededError):
                older.check()
            newer.check()
    assert not superseding._newest


def test_a_call_that_ended_first_leaves_the_newer_ones_key_alone() -> None:
    superseding = Superseding()
    older = superseding.claim("ak")  # type: ignore[arg-type]
    older.__enter__()
    with superseding.claim("ak") as newer:  # type: ignore[arg-type]
        older.__exit__(None, None, None)
        with superseding.claim("ak"):  # type: ignore[arg-type]
            assert newer.is_over


def test_calls_without_a_key_do_not_know_each_other() -> None:
    superseding = Superseding()
    with superseding.claim(None) as first, superseding.claim(None):
        first.check()
