"""Texts that are tokenised word by word have the tokens of the whole, and known words are not tokenised again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.serving.fakes import FakeTokenizer

from ultrafast.serving.words import MAX_CHARS, MAX_WORD_CHARS, WordTokenizer

BYTES = 1 << 20
MERGES = (" the", "the", "he", " a", "er", ", ", ".\n", "\n\n", "  ", "\nt", "12", " é", "é", ". ", "e'", "a'", "I'", "...", " .")
"""None goes on behind a letter with what ends a word."""


class ByteLevel(FakeTokenizer):
    """What calls itself a byte-level BPE; `merges` are its longer tokens, `prefix` it puts in front of every text."""

    def __init__(self, merges: tuple[str, ...] = MERGES, kind: str = "gpt2", prefix: str = "") -> None:
        super().__init__(merges=merges)
        self.metadata = {"tokenizer.ggml.model": kind}
        self.prefix = prefix
        self.texts: list[str] = []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.texts.append(text)
        return super().tokenize(self.prefix + text, add_special=add_special, parse_special=parse_special)


def whole(tokenizer: FakeTokenizer, text: str) -> list[int]:
    return tokenizer.tokenize(text, add_special=False, parse_special=False)


def taught(max_bytes: int = BYTES, **options: object) -> tuple[ByteLevel, WordTokenizer]:
    tokenizer = ByteLevel(**options)  # type: ignore[arg-type]
    words = WordTokenizer(tokenizer, max_bytes)
    tokenizer.texts.clear()
    return tokenizer, words


FRAGMENTS = st.sampled_from(
    [
        "the",
        "e",
        "er",
        "a",
        "I",
        "é",
        "世",
        " ",
        "  ",
        "\n",
        "\n\n",
        ",",
        ".",
        "...",
        ":",
        "'",
        "12",
        "3",
        "<|im_end|>",
        "\t",
        "\ud800",
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=24).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_the_tokens_are_those_of_the_whole(texts: list[str]) -> None:
    tokenizer, words = taught()
    for text in [*texts, *texts]:
        assert words.tokens(text) == whole(tokenizer, text)


def test_only_words_that_are_not_known_are_tokenised_and_these_at_once() -> None:
    tokenizer, words = taught()
    words.tokens("user\nThe sea, the sun and the moon and the sun.")
    words.tokens("user\nThe moon and the sea")
    words.tokens("user\nThe stars and the moon, and more stars.")
    assert tokenizer.texts == ["user\nThe sea, the sun and the moon.", " stars, and more"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"kind": "llama"}, id="no byte-level BPE"),
        pytest.param({"merges": ("of the",)}, id="a token across words"),
        pytest.param({"merges": ("end.",)}, id="a token across the end of a sentence"),
        pytest.param({"merges": ("line\n",)}, id="a token across lines"),
        pytest.param({"prefix": "x"}, id="something in front of every text"),
        pytest.param({"max_bytes": 0}, id="no room"),
    ],
)
def test_a_text_that_cannot_be_cut_is_tokenised_whole(options: dict[str, object]) -> None:
    tokenizer, words = taught(**options)  # type: ignore[arg-type]
    text = "of the end.\nof line\nof"
    for _ in range(2):
        tokenizer.texts.clear()
        assert words.tokens(text) == whole(tokenizer, text)
        assert tokenizer.texts == [text, text]


def test_a_long_text_is_tokenised_whole_and_a_long_word_is_not_kept() -> None:
    tokenizer, words = taught()
    long_text, long_word = "the sea " * MAX_CHARS, "a" * (MAX_WORD_CHARS + 1)
    for text in (long_text, long_text, long_word, long_word):
        assert words.tokens(text) == whole(tokenizer, text)
    assert tokenizer.texts == [text for text in (long_text, long_text, long_word, long_word) for _ in range(2)]


def test_a_vocabulary_that_lacks_a_byte_loses_it_as_in_the_whole() -> None:
    class Lossy(ByteLevel):
        def _raw(self, text: str) -> list[int]:
            return super()._raw(text.replace("?", ""))

    tokenizer = Lossy()
    words = WordTokenizer(tokenizer, BYTES)
    for text in ("is it? or not", "is or not", "or not? is it", "is it? or not"):
        assert words.tokens(text) == whole(tokenizer, text)


def test_words_are_bounded_and_those_met_again_stay() -> None:
    tokenizer, words = taught(max_bytes=100 * 512)
    for number in range(1000):
        words.tokens("often " + "".join(chr(ord("a") + int(digit)) for digit in str(number)))
        assert len(words._newer) + len(words._older) <= 2 * 100 + 1
    assert ["often" in text for text in tokenizer.texts] == [True] + [False] * 999
    tokenizer.texts.clear()
    words.tokens("often b")  # the second of them
    assert tokenizer.texts == [" b"]
