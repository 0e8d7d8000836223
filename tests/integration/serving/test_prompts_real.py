"""Prompts on real vocabularies: a byte-level BPE (the bundled model) and a SentencePiece one (Gemma 3)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.serving import templates

from ultrafast.engine.llama.special_texts import MAX_PER_PART
from ultrafast.engine.llama.vocab import Vocab
from ultrafast.serving.detokenize import Detokenizer
from ultrafast.serving.prompts import Conversation, PromptBuilder

pytestmark = pytest.mark.integration

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim"
    " + '<|eot_id|>' }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\\n' + (m.content | trim) + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
TEMPLATES = {**templates.ALL, "llama3": LLAMA3, "gemma": GEMMA}
LOOKALIKES = ["<|im_end|>", "<end_of_turn>", "<bos>", "<unused7>", "<file_sep>", "</s>", "<s>", "<pad>"]
TEXTS = [
    *(text for text in templates.TEXTS),
    "The quick brown fox, 12345.678 €, naïve façade — «ok»",
    "def f(x):\n\treturn [x for _ in range(3) if x < 10]\n",
    "日本語のテキスト。한국어 문장도. العربية עברית",
    "🧑‍🧑‍🧒‍🧒🏳️‍🌈 emoji",
    "     many     spaces     ",
    "\n\n\n\nnew\n\n\nlines\n\n",
    "<b>bold</b><i>x</i> <table><tr><td>1</td></tr></table>",
]


@pytest.fixture(scope="module", params=["bpe", "spm"])
def vocab(request: pytest.FixtureRequest) -> Iterator[Vocab]:
    fixture = {"bpe": "model_path", "spm": "sliding_window_model_path"}[request.param]
    path: Path = request.getfixturevalue(fixture)
    vocabulary = Vocab.load(str(path))
    yield vocabulary
    vocabulary.close()


def conversation(*contents: str) -> Conversation:
    return Conversation([{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)], [])


def whole(vocab: Vocab, text: str) -> list[int]:
    has_bos = vocab.bos is not None and text.startswith(vocab.special_text(vocab.bos))
    return vocab.tokenize(text, add_special=not has_bos, parse_special=True)


@functools.cache
def control_texts(vocab: Vocab) -> list[str]:
    return [vocab.special_text(token) for token, piece in enumerate(vocab.pieces) if not piece and vocab.special_text(token)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_segments_equal_the_whole(vocab: Vocab, name: str) -> None:
    prompts = PromptBuilder(vocab, TEMPLATES[name])
    control = control_texts(vocab)
    for first, second in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True):
        if any(text in first + second for text in control):
            continue
        rendered = prompts.render(conversation(first, second, first))
        assert prompts.tokens(rendered.items) == whole(vocab, rendered.text), (first, second)


@pytest.mark.parametrize("name", TEMPLATES)
def test_look_alikes_stay_text(vocab: Vocab, name: str) -> None:
    prompts = PromptBuilder(vocab, TEMPLATES[name])
    control = frozenset(prompts.control_ids.values())

    def count(text: str) -> int:
        tokens = prompts.tokens(prompts.render(conversation(text, text)).items)
        assert "\ufffd" not in b"".join(vocab.pieces[token] for token in tokens).decode()
        return sum(token in control for token in tokens)

    for lookalike in LOOKALIKES:
        assert count(f"a {lookalike} b") == count(lookalike) == count("x")


@functools.cache
def usual_prompts(vocab: Vocab) -> PromptBuilder:
    return PromptBuilder(vocab, templates.CHATML if vocab.bos == 1 else GEMMA)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_text_survives_the_way_there_and_back(vocab: Vocab, data: st.DataObject) -> None:
    prompts = usual_prompts(vocab)
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
    rendered = prompts.render(conversation(text))
    tokens = prompts.tokens(rendered.items)
    if not any(control in text for control in control_texts(vocab)):
        assert tokens == whole(vocab, rendered.text)


def test_pieces_are_exact_and_every_part_is_whole_characters(vocab: Vocab) -> None:
    text = "héllo 👋🏽 世界"
    tokens = vocab.tokenize(text, add_special=False, parse_special=False)
    detokenizer = Detokenizer(vocab.pieces)
    parts = [detokenizer.add(token) for token in tokens]
    assert all("\ufffd" not in part for part in parts)
    assert ("".join(parts) + detokenizer.finish()).strip() == text


def test_a_long_history_is_tokenised_once(vocab: Vocab) -> None:
    prompts = PromptBuilder(vocab, templates.CHATML if vocab.bos == 1 else GEMMA)
    history = [f"Message {number}: " + "what is the answer to this question? " * 12 for number in range(11)]
    prompts.tokens(prompts.render(conversation(*history)).items)
    before = prompts.cache_stats
    rendered = prompts.render(conversation(*history, "short answer", "next question"))
    tokens = prompts.tokens(rendered.items)
    after = prompts.cache_stats
    assert len(tokens) > 1000
    assert after.num_missed_tokens - before.num_missed_tokens < 20
    assert after.num_hit_tokens - before.num_hit_tokens > 1000


AWKWARD = [
    "{control}",
    "{control} {control}\n",
    "Hi{control}\n\n\nthere {control}  <|im{control}_end|>",
    "{control}{control}é{control}世界 \t\n{control}",
    "\n\n",
    "a\n \n\n\nb<b>bold</b><unused7>",
    "<{control}> [{control}",
]


@pytest.mark.parametrize("unit", AWKWARD)
def test_a_long_text_is_tokenised_in_parts_and_the_tokens_are_those_of_the_whole(
    vocab: Vocab, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libllama takes time by the square of the special tokens that it gets at once."""
    tokens_of = vocab._tokens
    calls: list[int] = []

    def counted(data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        tokens = tokens_of(data, add_special, parse_special)
        calls.append(sum(token in control for token in tokens))
        return tokens

    texts = control_texts(vocab)
    control = {token for token, piece in enumerate(vocab.pieces) if not piece}
    text = "".join(unit.format(control=texts[number * 7 % len(texts)]) + "x" * (number % 3) for number in range(3000))
    monkeypatch.setattr(vocab, "_tokens", counted)
    for add_special in (True, False):
        for parse_special in (True, False):
            calls.clear()
            tokens = vocab.tokenize(text, add_special=add_special, parse_special=parse_special)
            assert tokens == tokens_of(text.encode(), add_special, parse_special)
            assert max(calls) <= 2 * MAX_PER_PART
            assert "{control}" not in unit or not parse_special or len(calls) > 5


def test_bundled_template_knows_no_tools(model_path: Path) -> None:
    vocabulary = Vocab.load(str(model_path))
    chat_format = PromptBuilder(vocabulary).require_format()
    assert not chat_format.knows_tools
    assert not chat_format.has_reasoning
    vocabulary.close()


def test_a_reloaded_vocabulary_is_the_same_and_its_own(model_path: Path) -> None:
    first = Vocab.load(str(model_path))
    again = first.reloaded(str(model_path))
    assert again.handle != first.handle
    first.close()
    text = "héllo 世界 <|im_end|>"
    tokens = again.tokenize(text, add_special=False, parse_special=True)
    assert b"".join(again.pieces[token] for token in tokens).decode() == "héllo 世界 "
    assert again.special_text(tokens[-1]) == "<|im_end|>"
    again.close()
