from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ultrafast.serving.detokenize import Detokenizer, decode_tokens


@given(st.lists(st.binary(max_size=5), max_size=30))
def test_concatenation_is_the_decoded_whole(pieces: list[bytes]) -> None:
    detokenizer = Detokenizer(pieces)
    parts = [detokenizer.add(token) for token in range(len(pieces))]
    parts.append(detokenizer.finish())
    assert "".join(parts) == b"".join(pieces).decode("utf-8", "replace")
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in decode_tokens(range(len(pieces)), pieces)


def test_a_character_over_several_tokens_waits_until_it_is_whole() -> None:
    pieces = [b"h", " 👋🏽"[:2].encode()[:3], " 👋".encode()[3:], "🏽".encode()]
    detokenizer = Detokenizer(pieces)
    assert [detokenizer.add(token) for token in range(4)] == ["h", " ", "👋", "🏽"]
    assert detokenizer.finish() == ""


def test_incomplete_tail_becomes_a_replacement_character_only_at_the_end() -> None:
    detokenizer = Detokenizer(["世".encode()[:2]])
    assert detokenizer.add(0) == ""
    assert detokenizer.finish() == "\ufffd"


def test_overrides_show_control_tokens() -> None:
    detokenizer = Detokenizer([b"a", b""], {1: b"<x>"})
    assert detokenizer.add(0) + detokenizer.add(1) == "a<x>"
