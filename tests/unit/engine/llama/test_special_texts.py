"""Texts in parts: the same tokens as of the whole, whatever the vocabulary, and a bounded number of special texts in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.core.errors import InvalidRequestError
from ultrafast.engine.llama import special_texts
from ultrafast.engine.llama.special_texts import MAX_PER_PART, MAX_UNCUT, SpecialTexts

SPACE = b" \t\n\v\f\r"


class Special(NamedTuple):
    text: bytes
    strips_left: bool = False
    strips_right: bool = False


Fragment = tuple[str, bytes]


def partition(data: bytes, specials: Sequence[Special]) -> list[Fragment]:
    """What libllama does before it tokenises. Equally long texts are looked for in the order given: its sort promises none."""
    fragments: list[Fragment] = [("raw", data)] if data else []
    for special in sorted(specials, key=lambda one: -len(one.text)):
        found: list[Fragment] = []
        for kind, text in fragments:
            rest = text
            while kind == "raw" and (at := rest.find(special.text)) >= 0:
                left, rest = rest[:at], rest[at + len(special.text) :]
                left = left.rstrip(SPACE) if special.strips_left else left
                rest = rest.lstrip(SPACE) if special.strips_right else rest
                found += [("raw", left)] if left else []
                found.append(("token", special.text))
            found += [(kind, rest)] if rest else []
        fragments = found
    return fragments


def joined(parts: list[bytes], specials: Sequence[Special]) -> list[Fragment]:
    fragments = partition(parts[0], specials)
    for part in parts[1:]:
        more = partition(part, specials)
        assert more[0] == fragments[-1], "a part begins with the token that the one before ends with"
        assert more[0][0] == "token"
        fragments += more[1:]
    return fragments


LETTERS = st.sampled_from([b"a", b"b", b"c", b" ", b"\n"])
WORDS = st.lists(LETTERS, min_size=1, max_size=4).map(b"".join)
SPECIALS = st.lists(st.builds(Special, WORDS, st.booleans(), st.booleans()), max_size=5, unique_by=lambda one: one.text)


@settings(max_examples=500, deadline=None)
@given(SPECIALS, st.lists(st.one_of(LETTERS, WORDS), max_size=60).map(b"".join), st.data())
def test_the_parts_are_cut_as_the_whole_is(specials: list[Special], text: bytes, data: st.DataObject) -> None:
    """Overlaps, runs, ties and swallowed white space included; parts as short as they can be."""
    words = [special.text for special in specials]
    text = b"".join(data.draw(st.lists(st.sampled_from([*words, b"x", b" "]), max_size=30))) + text
    is_stripping = any(special.strips_left or special.strips_right for special in specials)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(special_texts, "MAX_PER_PART", 2)
        parts = SpecialTexts(words, is_stripping=is_stripping).parts(text)
    assert joined(parts, specials) == partition(text, specials)


CHATML = [Special(text) for text in (b"<|im_start|>", b"<|im_end|>", b"<|im", b"\n\n", b"\n")]


@pytest.mark.parametrize(
    "unit",
    [
        b"<|im_start|>",
        b"<|im_start|>user\nHi<|im_end|>\n",
        b"<|im_end|> <|im<|im_start|>",
        b"\n\n-",
        b"a\n\n\nb\n",
        "é<|im_end|>日本".encode(),
    ],
)
def test_no_part_has_many_special_texts(unit: bytes) -> None:
    data = unit * (20 * MAX_PER_PART)
    parts = SpecialTexts([special.text for special in CHATML]).parts(data)
    assert joined(parts, CHATML) == partition(data, CHATML)
    assert len(parts) > 10
    for part in parts:
        assert sum(kind == "token" for kind, _ in partition(part, CHATML)) <= 2 * MAX_PER_PART


@pytest.mark.parametrize(
    "text", [b"", b"Hi", b"<|im_end|>" * MAX_PER_PART, b"<" * 100_000 + b"<|im_end|>", b"no special text " * 9999]
)
def test_a_text_with_few_of_them_stays_whole(text: bytes) -> None:
    assert SpecialTexts([b"<|im_start|>", b"<|im_end|>"]).parts(text) == [text]


def test_texts_that_run_into_each_other_are_whole_up_to_a_limit_and_refused_above_it() -> None:
    """Every `aba` overlaps another one: which of them libllama takes is decided at the begin of the run."""
    texts = SpecialTexts([b"aba", b"bab"])
    run = b"ab" * MAX_UNCUT
    assert texts.parts(run) == [run]
    with pytest.raises(InvalidRequestError, match="run into each other") as caught:
        texts.parts(run * 2)
    assert caught.value.hint
    # Some places to cut in the middle are enough.
    assert len(texts.parts(run + b"c aba c" * MAX_PER_PART + run)) > 1


def test_a_vocabulary_without_special_tokens() -> None:
    assert SpecialTexts(()).parts(b"<|im_end|>" * 100_000) == [b"<|im_end|>" * 100_000]
