from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.serving.stops import StopAutomaton, StopFilter

letters = st.text("ab#", max_size=40)
stop_lists = st.lists(st.text("ab#", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The match that ends first; of those that end together, the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, negative_length, stop = min(ends)
    return text[: end + negative_length], stop


def run(chunks: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    stop_filter = StopFilter(StopAutomaton(stops))
    delivered = [stop_filter.add(chunk) for chunk in chunks]
    if stop_filter.matched is None:
        delivered.append(stop_filter.finish())
    return delivered, stop_filter.matched


@given(st.lists(st.text("ab#", max_size=6), max_size=10), stop_lists)
def test_equals_the_naive_search_for_any_chunks(chunks: list[str], stops: list[str]) -> None:
    delivered, matched = run(chunks, stops)
    assert ("".join(delivered), matched) == naive("".join(chunks), stops)


@given(letters, stop_lists)
def test_holds_back_no_more_than_a_possible_beginning(text: str, stops: list[str]) -> None:
    stop_filter = StopFilter(StopAutomaton(stops))
    delivered = ""
    for position, char in enumerate(text, 1):
        delivered += stop_filter.add(char)
        if stop_filter.matched is not None:
            return
        held = text[len(delivered) : position]
        assert held == max(
            (stop[:n] for stop in stops for n in range(len(stop) + 1) if text[:position].endswith(stop[:n])), key=len, default=""
        )


@pytest.mark.parametrize(
    ("chunks", "stops", "expected", "matched"),
    [
        (["answer ", "#", "#", "# rest"], ["###"], "answer ", "###"),
        (["answer ##", " rest"], ["###"], "answer ## rest", None),
        (["####"], ["###"], "", "###"),
        (["héllo 👋", "🏽 世", "界!"], ["世界"], "héllo 👋🏽 ", "世界"),
        (["aab"], ["ab", "aab"], "", "aab"),
        (["abc"], ["abc", "b"], "a", "b"),
        (["x\n", "\nUser:"], ["\nUser:", "\n\n"], "x", "\n\n"),
        (["text"], [""], "text", None),
    ],
)
def test_examples(chunks: list[str], stops: list[str], expected: str, matched: str | None) -> None:
    delivered, found = run(chunks, stops)
    assert ("".join(delivered), found) == (expected, matched)


@given(st.lists(st.text("ab#", max_size=4), max_size=8), stop_lists, st.integers(0, 8))
def test_no_stop_string_counts_that_ends_within_the_first_chunks(chunks: list[str], stops: list[str], num_free: int) -> None:
    stop_filter = StopFilter(StopAutomaton(stops))
    delivered = "".join(stop_filter.add(chunk, may_match=number >= num_free) for number, chunk in enumerate(chunks))
    delivered += stop_filter.finish()
    text, first = "".join(chunks), len("".join(chunks[:num_free]))
    ends = [
        (begin + len(stop), -len(stop), stop)
        for stop in stops
        for begin in range(len(text))
        if stop and text.startswith(stop, begin) and begin + len(stop) > first
    ]
    end, negative_length, matched = min(ends, default=(len(text), 0, None))
    assert (delivered, stop_filter.matched) == (text[: end + negative_length], matched)


def test_a_stop_string_that_does_not_count_is_not_held_back() -> None:
    assert StopFilter(StopAutomaton(["###"])).add("a###", may_match=False) == "a#"
