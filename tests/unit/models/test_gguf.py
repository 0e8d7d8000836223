import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.models.gguf_builder import ARRAY, BOOL, STRING, TENSORS, U32, build, llama_metadata

from ultrafast.core.errors import ModelFileError
from ultrafast.models import gguf_header
from ultrafast.models.gguf import read_facts
from ultrafast.models.gguf_header import TensorInfo, tensor_bytes

Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write_file


def with_metadata(**changes: Any) -> dict[str, tuple[int, Any]]:
    """The complete metadata with ``__`` as dot in changed keys; None removes one."""
    metadata = llama_metadata()
    for key, change in changes.items():
        if change is None:
            del metadata[key.replace("__", ".")]
        else:
            metadata[key.replace("__", ".")] = change
    return metadata


def refusal(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read_facts(path)
    assert caught.value.hint, "every refusal says what to do"
    assert str(path) in caught.value.message
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
def test_reads_the_facts(write: Write, version: int) -> None:
    facts = read_facts(write(build(version=version)))
    assert (facts.architecture, facts.name, facts.quantisation) == ("llama", "tiny", "Q4_1")
    assert (facts.context_length, facts.num_layers, facts.embedding_length, facts.vocab_size) == (128, 2, 64, 3)
    assert (facts.num_heads, facts.num_kv_heads) == ((4, 4), (2, 2))
    assert (facts.key_head_dim, facts.value_head_dim) == (16, 16)
    assert facts.num_kv_elements_per_token == 2 * 2 * 32
    assert facts.num_parameters == 192 + 4096
    assert facts.has_chat_template
    assert facts.sliding_window is None
    assert not facts.has_recurrent_layers


def test_reads_per_layer_heads_window_and_state_space_keys(write: Write) -> None:
    metadata = with_metadata(
        llama__attention__head_count_kv=(ARRAY, (U32, [0, 2])),
        llama__attention__key_length=(U32, 32),
        llama__attention__sliding_window=(U32, 512),
        llama__ssm__state_size=(U32, 16),
        tokenizer__chat_template=None,
        general__file_type=(U32, 999),
    )
    facts = read_facts(write(build(metadata)))
    assert facts.num_kv_heads == (0, 2)
    assert facts.num_kv_elements_per_token == 2 * (32 + 16)
    assert facts.sliding_window == 512
    assert facts.has_recurrent_layers
    assert not facts.has_chat_template
    assert facts.quantisation == "unknown"


def test_a_long_vocabulary_is_counted_but_not_kept(write: Write) -> None:
    tokens = [f"t{i}" for i in range(gguf_header.MAX_KEPT_ITEMS + 1)]
    path = write(build(with_metadata(tokenizer__ggml__tokens=(ARRAY, (STRING, tokens)))))
    assert read_facts(path).vocab_size == len(tokens)
    header = gguf_header.read_header(path, path.stat().st_size)
    assert isinstance(header.metadata["tokenizer.ggml.tokens"], gguf_header.LongArray)


def test_fingerprint_depends_on_content_and_not_on_the_path(tmp_path: Path) -> None:
    content = build()
    other = bytearray(content)
    other[-1] ^= 1
    prints = []
    for i, each in enumerate((content, content, bytes(other))):
        path = tmp_path / f"{i}.gguf"
        path.write_bytes(each)
        prints.append(read_facts(path).fingerprint)
    assert prints[0] == prints[1] != prints[2]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_cut_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = build()
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    refusal(path)


def test_every_cut_within_the_header_is_refused(write: Write) -> None:
    content = build(data_bytes=0)
    table_end = content.rindex(b"attn_q.weight") + len("attn_q.weight") + 4 + 16 + 4 + 8
    for length in range(1, table_end):
        assert "ends too early" in refusal(write(content[:length])).message
    for length in range(table_end, len(content)):
        assert "the file is cut" in refusal(write(content[:length])).message


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, len(build(data_bytes=0)) - 1), byte=st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_read_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    content = bytearray(build())
    content[position] = byte
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(content)
    with contextlib.suppress(ModelFileError):
        read_facts(path)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html>", "web page"),
        (b"PK\x03\x04 and more", "zip archive"),
        (b"tjgg and more", "older GGML"),
        (b"\x08\x00\x00\x00\x00\x00\x00\x00{}", "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + b"\0" * 64, "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 64, "big-endian"),
        (b"GGUF" + struct.pack("<I", 77) + b"\0" * 64, "version 77"),
    ],
)
def test_other_formats_are_named(write: Write, start: bytes, words: str) -> None:
    assert words in refusal(write(start)).message


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (with_metadata(general__architecture=(STRING, "nomic-bert")), "encoder-only"),
        (with_metadata(general__architecture=(STRING, "clip")), "image or audio"),
        (with_metadata(general__type=(STRING, "adapter")), "type 'adapter'"),
        (with_metadata(llama__attention__causal=(BOOL, False)), "embedding"),
        (with_metadata(llama__pooling_type=(U32, 3)), "embedding"),
        (with_metadata(split__count=(U32, 3), split__no=(U32, 1)), "part 2 of a model split into 3"),
        (with_metadata(tokenizer__ggml__model=None), "no tokenizer"),
        (with_metadata(tokenizer__ggml__model=(STRING, "no_vocab")), "no tokenizer"),
        (with_metadata(tokenizer__ggml__tokens=None), "no tokenizer"),
        (with_metadata(general__architecture=None), "general.architecture"),
        (with_metadata(llama__context_length=None), "llama.context_length"),
        (with_metadata(llama__block_count=(STRING, "two")), "llama.block_count"),
        (with_metadata(llama__block_count=(U32, 2**32 - 1)), "llama.block_count"),
        (with_metadata(llama__attention__head_count_kv=(ARRAY, (U32, [2]))), "head_count_kv"),
        (with_metadata(general__alignment=(U32, 24)), "alignment 24"),
    ],
)
def test_unsupported_models_are_refused(write: Write, metadata: dict[str, tuple[int, Any]], words: str) -> None:
    assert words in refusal(write(build(metadata))).message


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ((), "no tensors"),
        ((("w", (64, 4), 0, 2**62),), "cut"),
        ((("w", (2**40, 2**40), 0, 0),), "cut"),
        ((("w", (64,), 4, 0),), "type 4"),
        ((("w", (33,), 3, 0),), "shape (33,)"),
        ((("w", (0,), 0, 0),), "shape (0,)"),
    ],
)
def test_bad_tensors_are_refused(write: Write, tensors: Any, words: str) -> None:
    assert words in refusal(write(build(tensors=tensors))).message


def test_one_missing_byte_of_the_last_tensor_is_a_cut_file(write: Write) -> None:
    content = build()
    read_facts(write(content))
    assert f"{len(content):,} bytes, it has {len(content) - 1:,}" in refusal(write(content[:-1])).message


@pytest.mark.parametrize("count", [2**20, 2**63])
def test_a_huge_count_costs_nothing(write: Write, count: int) -> None:
    refusal(write(b"GGUF" + struct.pack("<IQQ", 3, count, 0)))
    refusal(write(b"GGUF" + struct.pack("<IQQ", 3, 0, count) + b"\0" * 64))
    refusal(write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, count) + b"\0" * 64))


def test_nested_arrays_are_bounded(write: Write) -> None:
    nested: Any = (U32, [1])
    for _ in range(8):
        nested = (ARRAY, [nested])
    assert "too deeply" in refusal(write(build(with_metadata(x=(ARRAY, nested))))).message


def test_the_header_is_bounded(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", 200)
    assert "larger than 200 bytes" in refusal(write(build())).message


def test_missing_empty_and_folder_are_told_apart(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.gguf").message
    assert "not a file" in refusal(tmp_path).message
    (tmp_path / "empty.gguf").touch()
    assert "empty" in refusal(tmp_path / "empty.gguf").message


def test_tensor_bytes_follow_the_block_layout() -> None:
    assert [tensor_bytes(TensorInfo(*row)) for row in TENSORS] == [768, 2560]
