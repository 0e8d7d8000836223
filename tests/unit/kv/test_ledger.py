"""The ledger: ids, leaves, evictions and the operations that tell the engine."""

from __future__ import annotations

import pytest

from ultrafast.core.step import CopyPrefix, TrimSequence
from ultrafast.kv.ledger import KvLedger, num_sequences
from ultrafast.kv.segment import SequenceKv


def _ledger(**changes: object) -> KvLedger:
    values: dict[str, object] = {
        "capacity_tokens": 100,
        "max_num_running": 4,
        "max_num_cached": 2,
        "can_trim": True,
        "has_cache": True,
        "block_size": 32,
    }
    return KvLedger(**{**values, **changes})  # type: ignore[arg-type]


def _run(ledger: KvLedger, tokens: list[int], now: float = 0.0) -> SequenceKv:
    match = ledger.match(tokens, "")
    sequence = ledger.start("r", "", match, now)
    ledger.extend(sequence, tokens[sequence.length :])
    return sequence


def test_a_match_leaves_the_last_token_to_compute() -> None:
    ledger = _ledger()
    _run(ledger, [1, 2, 3])
    match = ledger.match([1, 2, 3], "")
    assert match is not None
    assert match.num_tokens == 2
    assert ledger.match([1], "") is None


def test_sharing_writes_a_copy_and_counts_cells_once() -> None:
    ledger = _ledger()
    first = _run(ledger, [1, 2, 3, 4])
    second = _run(ledger, [1, 2, 9])
    assert ledger.take_ops() == (CopyPrefix("r", first.seq_id, second.seq_id, 2),)
    assert ledger.take_ops() == ()
    assert ledger.num_free == 100 - 5


def test_freeing_one_of_two_keeps_the_shared_cells() -> None:
    ledger = _ledger()
    first = _run(ledger, [1, 2, 3, 4])
    _run(ledger, [1, 2, 9])
    ledger.take_ops()
    ledger.free(first)
    assert ledger.take_ops() == (TrimSequence(first.seq_id, 0),)
    assert ledger.num_free == 100 - 3


def test_the_number_of_leaves_is_bounded_and_the_least_recently_used_goes() -> None:
    ledger = _ledger()
    for i in range(3):
        ledger.finish(_run(ledger, [10 * i + 1, 10 * i + 2], now=float(i)), now=float(i))
    assert len(ledger.leaves) == 2
    assert ledger.match([1, 2, 3], "") is None
    assert ledger.match([21, 22, 23], "") is not None


def test_use_as_a_source_makes_a_leaf_recent() -> None:
    ledger = _ledger()
    ledger.finish(_run(ledger, [1, 2], now=0.0), now=0.0)
    ledger.finish(_run(ledger, [11, 12], now=1.0), now=1.0)
    ledger.free(_run(ledger, [1, 2, 3], now=2.0))
    ledger.finish(_run(ledger, [21, 22], now=3.0), now=3.0)
    assert ledger.match([1, 2, 3], "") is not None
    assert ledger.match([11, 12, 13], "") is None


def test_making_room_evicts_only_what_holds_evictable_cells() -> None:
    ledger = _ledger(max_num_cached=4)
    ledger.finish(_run(ledger, list(range(1, 21)), now=0.0), now=0.0)
    running = _run(ledger, [*range(1, 21), 77], now=1.0)
    ledger.finish(_run(ledger, list(range(50, 80)), now=2.0), now=2.0)
    assert ledger.num_evictable == 30
    assert ledger.make_room(60)
    assert len(ledger.leaves) == 1, "the leaf whose cells all run was no use and stays"
    assert ledger.usage.num_running_tokens == running.length


def test_making_room_in_vain_evicts_nothing() -> None:
    ledger = _ledger()
    ledger.finish(_run(ledger, list(range(1, 21))), now=0.0)
    _run(ledger, list(range(30, 90)))
    assert not ledger.make_room(60)
    assert len(ledger.leaves) == 1


def test_what_a_match_makes_active_is_not_available() -> None:
    ledger = _ledger()
    ledger.finish(_run(ledger, list(range(1, 41))), now=0.0)
    match = ledger.match(list(range(1, 31)), "")
    assert match is not None
    assert ledger.num_available(None) == 100
    assert ledger.num_available(match) == 100 - 29


def test_a_prefix_leaf_stays_where_sequences_cannot_be_cut() -> None:
    ledger = _ledger(can_trim=False, max_num_cached=4)
    ledger.finish(_run(ledger, [1, 2, 3]), now=0.0)
    ledger.finish(_run(ledger, [1, 2, 3, 4, 5]), now=1.0)
    assert len(ledger.leaves) == 2
    match = ledger.match([1, 2, 3, 9, 9], "")
    assert match is not None
    assert match.num_tokens == 3
    assert ledger.match([1, 2, 9], "") is None


def test_a_copy_that_failed_needs_no_trim() -> None:
    ledger = _ledger()
    _run(ledger, [1, 2, 3])
    second = _run(ledger, [1, 2, 3, 4])
    ledger.take_ops()
    ledger.forget(second)
    assert not ledger.has_ops


def test_ids_never_run_out_and_stay_below_the_number_promised() -> None:
    ledger = _ledger(max_num_running=3, max_num_cached=2)
    used = set()
    for round_ in range(20):
        sequences = [_run(ledger, [100 * round_ + 10 * i + 1, 100 * round_ + 10 * i + 2]) for i in range(3)]
        used |= {sequence.seq_id for sequence in sequences}
        for sequence in sequences:
            ledger.finish(sequence, now=float(round_))
    assert max(used) < num_sequences(3, 2)


def test_usage_in_blocks() -> None:
    ledger = _ledger()
    _run(ledger, list(range(1, 34)))
    assert (ledger.usage.num_used_blocks, ledger.usage.num_total_blocks) == (2, 3)


def test_more_cells_than_the_pool_has_is_a_broken_invariant() -> None:
    ledger = _ledger()
    with pytest.raises(AssertionError, match="more cells"):
        _run(ledger, list(range(101)))


def test_an_idle_cache_holds_no_more_tokens_than_it_may() -> None:
    ledger = _ledger(max_num_cached=8, max_cached_tokens=10)
    for round_ in range(5):
        ledger.finish(_run(ledger, [100 * round_ + i for i in range(1, 5)]), now=float(round_))
        assert ledger.num_evictable <= 10
    assert len(ledger.leaves) == 2
    assert ledger.match([401, 402, 403, 404, 9], "") is not None
    assert ledger.match([1, 2, 3, 4, 9], "") is None
    ledger.finish(_run(ledger, list(range(501, 540))), now=9.0)
    assert len(ledger.leaves) == 1, "a leaf above the limit stays while it is the newest"
