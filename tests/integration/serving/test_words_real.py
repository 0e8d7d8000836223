"""Words on the bundled vocabulary, as it is and with the rules of other models for where a word ends."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ultrafast.engine.llama.vocab import Vocab
from ultrafast.serving.words import WordTokenizer

pytestmark = pytest.mark.integration

_KEY = b"tokenizer.ggml.pre" + struct.pack("<I", 8)  # and the type of its value: text
WORDS = [
    "The",
    "quick",
    "foxes",
    "can't",
    "IT'S",
    "ok",
    "I",
    "x",
    "e.g",
    "naïve",
    "日本",
    "a1",
    "2024",
    "123456",
    "re-do",
    "camelCase",
]
AROUND = [
    *("", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r\n", "\t", "\u00a0", "\u3000"),
    *(", ", ". ", "... ", ".\n", ".\n\n", ": ", "?!", ";", " ,", " - ", "'", '"', " (", ") ", "/"),
]


@pytest.fixture(
    scope="module",
    params=[
        *("smollm", "default", "llama-bpe", "qwen2", "gpt-4o", "tekken", "deepseek-llm", "deepseek-v3", "falcon", "bloom"),
        *("chameleon", "kimi-k2", "exaone-moe", "superbpe", "afmoe", "tiny_aya"),
    ],
)
def vocab(request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocab]:
    """The bundled model's, with the name of a pre-tokeniser in place of its own."""
    path = tmp_path_factory.mktemp("vocab") / "model.gguf"
    name: bytes = request.param.encode()
    data = model_path.read_bytes()
    begin = data.index(_KEY) + len(_KEY)
    (length,) = struct.unpack_from("<Q", data, begin)
    # Padded: tensors that begin a little later must not end behind the file.
    path.write_bytes(data[:begin] + struct.pack("<Q", len(name)) + name + data[begin + 8 + length :] + bytes(64))
    vocabulary = Vocab.load(str(path))
    path.unlink()
    yield vocabulary
    vocabulary.close()


def test_a_text_word_by_word_has_the_tokens_of_the_whole(vocab: Vocab) -> None:
    words = WordTokenizer(vocab, 1 << 20)
    rng = random.Random(1)
    for _ in range(500):
        text = "".join(rng.choice(WORDS) + rng.choice(AROUND) for _ in range(rng.randint(1, 10)))
        assert words.tokens(text) == vocab.tokenize(text, add_special=False, parse_special=False), text


def test_words_are_remembered(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordTokenizer(vocab, 1 << 20)
    words.tokens("The quick brown fox, the lazy dog")
    mixed = "The lazy brown fox, the quick dog"
    expected = vocab.tokenize(mixed, add_special=False, parse_special=False)
    monkeypatch.setattr(vocab, "tokenize", None)
    assert words.tokens(mixed) == expected
