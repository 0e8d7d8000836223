"""What a step's work looks like to libllama."""

from __future__ import annotations

import pytest

from ultrafast.core.step import SequenceWork
from ultrafast.engine.llama.batch import Batch


def _decodes(num: int) -> list[SequenceWork]:
    return [SequenceWork(f"decode-{i}", i, 100 + i, (1000 + i,), samples=True, output_index=3) for i in range(num)]


def _chunk(num_tokens: int, *, samples: bool) -> SequenceWork:
    return SequenceWork("prompt", 20, 5, tuple(range(num_tokens)), samples=samples)


def _filled(work: list[SequenceWork]) -> tuple[list[int], list[int], list[int]]:
    """The rows that are read, and the rows with outputs, and all tokens."""
    batch = Batch(64)
    batch.outputs[:] = 1  # what an earlier step left
    rows = batch.fill(tuple(work))
    num = batch.handle.n_tokens
    return rows, [i for i in range(num) if batch.outputs[i]], batch.tokens[:num].tolist()


def test_tokens_positions_and_rows_of_each_item() -> None:
    batch = Batch(64)
    rows = batch.fill((*_decodes(2), _chunk(3, samples=True)))
    assert batch.tokens[:5].tolist() == [1000, 1001, 0, 1, 2]
    assert batch.positions[:5].tolist() == [100, 101, 5, 6, 7]
    assert batch.sequences[:5].tolist() == [0, 1, 20, 20, 20]
    assert batch.outputs[:5].tolist() == [1, 1, 0, 0, 1]
    assert rows == [0, 1, 4]


@pytest.mark.parametrize("num_decodes", [5, 7, 9, 15])
def test_an_odd_number_of_output_rows_is_filled_up_by_a_prompt_token(num_decodes: int) -> None:
    rows, outputs, _ = _filled([*_decodes(num_decodes), _chunk(6, samples=False)])
    assert rows == [*range(num_decodes), num_decodes + 5]
    assert outputs == [*range(num_decodes), num_decodes]  # the first token of the chunk; its last is not read this step


def test_the_row_is_filled_up_before_the_prompt_as_well() -> None:
    rows, outputs, _ = _filled([_chunk(6, samples=False), *_decodes(7)])
    assert rows == [5, *range(6, 13)]
    assert outputs == [0, *range(6, 13)]


@pytest.mark.parametrize(
    ("num_decodes", "samples"),
    [(1, False), (3, False), (4, False), (8, False), (7, True), (2, True)],
    ids=["one", "three", "four", "eight", "seven and the prompt's own", "two and the prompt's own"],
)
def test_where_the_number_is_even_or_small_nothing_is_added(num_decodes: int, samples: bool) -> None:
    _, outputs, _ = _filled([*_decodes(num_decodes), _chunk(6, samples=samples)])
    assert len(outputs) == num_decodes + samples


def test_without_a_token_to_spare_the_number_stays_odd() -> None:
    assert _filled(_decodes(7))[1] == list(range(7))
    assert len(_filled([*_decodes(6), _chunk(1, samples=True)])[1]) == 7


def test_drafts_have_rows_of_their_own_and_count() -> None:
    drafting = SequenceWork("drafts", 9, 50, (7,), samples=True, drafts=(8, 9, 10, 11))
    rows, outputs, tokens = _filled([drafting, _chunk(4, samples=False)])
    assert tokens[:5] == [7, 8, 9, 10, 11]
    assert rows == [0, 8]
    assert outputs == [0, 1, 2, 3, 4, 5]
