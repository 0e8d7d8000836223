"""The prefix tree against a model that keeps every sequence as a plain list of (token, cell)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.kv.prefix import common_prefix
from ultrafast.kv.segment import SequenceKv
from ultrafast.kv.tree import PrefixTree

TOKENS = st.lists(st.integers(1, 2), min_size=1, max_size=12)


class Model:
    """The truth by brute force: a list of cells for each sequence."""

    def __init__(self) -> None:
        self.tree = PrefixTree()
        self.cells: dict[SequenceKv, list[tuple[int, int]]] = {}
        self.num_cells = 0
        self.num_opened = 0

    def open(self, namespace: str | None) -> SequenceKv:
        self.num_opened += 1
        sequence = self.tree.open(self.num_opened, self.num_opened, namespace)
        self.cells[sequence] = []
        return sequence

    def extend(self, sequence: SequenceKv, tokens: list[int]) -> None:
        self.tree.extend(sequence, tokens)
        for token in tokens:
            self.num_cells += 1
            self.cells[sequence].append((token, self.num_cells))

    def longest(self, tokens: list[int], namespace: str, limit: int, is_whole: bool) -> int:
        lengths = [0]
        for sequence, cells in self.cells.items():
            held = [token for token, _ in cells]
            equal = common_prefix(held, 0, tokens, 0, limit)
            if sequence.namespace == namespace and (not is_whole or equal == len(held)):
                lengths.append(equal)
        return max(lengths)

    def check(self) -> None:
        held = {cell for cells in self.cells.values() for _, cell in cells}
        active = {cell for sequence, cells in self.cells.items() if sequence.is_active for _, cell in cells}
        assert self.tree.num_used == len(held)
        assert self.tree.num_evictable == len(held - active)
        for sequence, cells in self.cells.items():
            assert sequence.length == len(cells)
            assert sequence.tokens() == [token for token, _ in cells]
            others = {
                cell for other, theirs in self.cells.items() if other is not sequence and other.is_active for _, cell in theirs
            }
            assert self.tree.num_reclaimable(sequence) == len({cell for _, cell in cells} - others)


@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_tree_agrees_with_plain_lists(data: st.DataObject) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(1, 25))):
        _random_step(model, data.draw)
        model.check()


def _random_step(model: Model, draw: Any) -> None:
    sequences = sorted(model.cells, key=lambda sequence: sequence.order)
    action = draw(st.sampled_from(["start", "start", "extend", "extend", "deactivate", "close"]))
    active = [sequence for sequence in sequences if sequence.is_active]
    if action == "start" or not sequences:
        _start(model, draw)
    elif action == "close":
        sequence = draw(st.sampled_from(sequences))
        model.tree.close(sequence)
        del model.cells[sequence]
    elif active:
        sequence = draw(st.sampled_from(active))
        if action == "extend":
            model.extend(sequence, draw(TOKENS))
        else:
            model.tree.deactivate(sequence)


def _start(model: Model, draw: Any) -> None:
    namespace = draw(st.sampled_from(["", "", "other"]))
    tokens, is_whole = draw(TOKENS), draw(st.booleans())
    limit = draw(st.integers(1, len(tokens)))
    match = model.tree.match(tokens, namespace, limit, is_whole=is_whole)
    assert (match.num_tokens if match else 0) == model.longest(tokens, namespace, limit, is_whole)
    evictable = model.tree.num_evictable_in(match) if match else 0
    before = model.tree.num_evictable
    sequence = model.open(namespace)
    if match:
        shared = model.cells[match.source][: match.num_tokens]
        assert [token for token, _ in shared] == tokens[: match.num_tokens]
        model.tree.share(sequence, match)
        model.cells[sequence] = list(shared)
    assert before - model.tree.num_evictable == evictable


@given(data=st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_covers_and_prefix_leaves_agree_with_plain_lists(data: st.DataObject) -> None:
    model = Model()
    for tokens in data.draw(st.lists(TOKENS, min_size=2, max_size=6)):
        sequence = model.open("")
        match = model.tree.match(tokens, "", len(tokens), is_whole=False) if data.draw(st.booleans()) else None
        if match:
            model.tree.share(sequence, match)
            model.cells[sequence] = model.cells[match.source][: match.num_tokens]
        if tokens[sequence.length :]:
            model.extend(sequence, tokens[sequence.length :])
        if data.draw(st.booleans()):
            model.tree.deactivate(sequence)
    for sequence in model.cells:
        own = sequence.tokens()
        others = [other for other in model.cells if other is not sequence]
        for is_whole in (False, True):
            covers = [
                other for other in others if other.tokens()[: len(own)] == own and (not is_whole or other.length == len(own))
            ]
            assert model.tree.has_cover(sequence, own, is_whole=is_whole) == bool(covers)
        prefixes = [other for other in others if not other.is_active and own[: other.length] == other.tokens()]
        found = model.tree.prefix_leaves(sequence, own)
        assert sorted(other.order for other in found) == sorted(other.order for other in prefixes)


def test_namespaces_and_private_sequences_do_not_see_each_other() -> None:
    tree = PrefixTree()
    tree.extend(tree.open(1, 1, "a"), [1, 2, 3])
    tree.extend(tree.open(2, 2, None), [1, 2, 3])
    assert tree.match([1, 2, 3], "b", 3, is_whole=False) is None
    match = tree.match([1, 2, 3], "a", 3, is_whole=False)
    assert match is not None
    assert match.source.seq_id == 1
    with pytest.raises(AssertionError, match="one namespace"):
        tree.share(tree.open(3, 3, None), match)


def test_empty_namespaces_leave_nothing_behind() -> None:
    tree = PrefixTree()
    for i in range(10):
        sequence = tree.open(1, i, f"salt{i}")
        tree.extend(sequence, [1, 2])
        tree.close(sequence)
    assert not tree._roots
    assert (tree.num_used, tree.num_evictable) == (0, 0)


def test_the_older_sequence_is_the_source_of_a_copy() -> None:
    tree = PrefixTree()
    old = tree.open(7, 1, "")
    tree.extend(old, [1, 2, 3, 4])
    match = tree.match([1, 2, 3, 9], "", 4, is_whole=False)
    assert match is not None
    tree.share(tree.open(3, 2, ""), match)
    again = tree.match([1, 2, 3, 8], "", 4, is_whole=False)
    assert again is not None
    assert again.source is old


@pytest.mark.parametrize("differs_at", [0, 1, 127, 128, 129, 500, 999])
def test_common_prefix_is_exact_around_its_strides(differs_at: int) -> None:
    a = list(range(1000))
    b = [*range(differs_at), -1, *range(differs_at + 1, 1000)]
    assert common_prefix(a, 0, b, 0, 2000) == differs_at
    assert common_prefix(a, 0, a, 0, 2000) == 1000
    assert common_prefix(a, 10, a, 10, 5) == 5
