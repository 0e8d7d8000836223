"""The facts of a model file, and whether it can be served at all.

Owns the meaning of metadata keys and the checks that run before anything starts. Source of the keys: ``gguf.md`` of the
ggml project and ``llama-arch.cpp`` of llama.cpp b11549. Reading takes a fraction of a second: header and samples only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ultrafast.core.errors import ModelFileError
from ultrafast.models.gguf_header import HINT_DAMAGED, GgufHeader, LongArray, read_header, tensor_bytes
from ultrafast.models.gguf_types import FILE_TYPE_NAMES, ValueType

DEFAULT_ALIGNMENT: Final = 32
MAX_LAYERS: Final = 4096
_NUM_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096

_HINT_TEXT_MODEL: Final = "Ultrafast serves text generation models (decoders); choose a chat or instruct model."
_NO_TEXT_GENERATION: Final = {
    "encoder": {
        "bert",
        "eurobert",
        "gemma-embedding",
        "gemma-embedding2",
        "jina-bert-v2",
        "jina-bert-v3",
        "llama-embed",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "t5encoder",
    },
    "encoder-decoder": {"t5"},
    "diffusion": {"dream", "llada", "llada-moe", "rnd1"},
    "image or audio": {"clip", "pockettts", "qwen3tts", "wavtokenizer-dec"},
}


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What a checked model file says about itself.

    Attributes:
        architecture: llama.cpp's name, e.g. ``llama`` or ``gemma3``.
        name: the publisher's name of the model, or None.
        context_length: tokens the model was trained for.
        num_layers: transformer blocks.
        num_heads: attention heads per layer; 0 in a layer without attention.
        num_kv_heads: key/value heads per layer; 0 in a layer without attention.
        key_head_dim: elements of one key head; 0 if the model has no attention.
        value_head_dim: elements of one value head; 0 if the model has no attention.
        embedding_length: width of the hidden state.
        vocab_size: tokens in the vocabulary.
        num_parameters: elements of all tensors.
        quantisation: e.g. ``Q4_K_M``; ``unknown`` if the file does not say.
        has_chat_template: the metadata hold a Jinja chat template.
        sliding_window: attention window in tokens, or None for full attention in every layer.
        has_recurrent_layers: state-space or RWKV layers, whose state cannot be trimmed.
        size_bytes: of the whole file.
        fingerprint: hex SHA-256 over header, size and 64 evenly spaced samples of 4 KiB. Equal files have equal ones;
            it tells apart files of different weights for cache keys, but proves no authenticity.
    """

    architecture: str
    name: str | None
    context_length: int
    num_layers: int
    num_heads: tuple[int, ...]
    num_kv_heads: tuple[int, ...]
    key_head_dim: int
    value_head_dim: int
    embedding_length: int
    vocab_size: int
    num_parameters: int
    quantisation: str
    has_chat_template: bool
    sliding_window: int | None
    has_recurrent_layers: bool
    size_bytes: int
    fingerprint: str

    @property
    def num_kv_elements_per_token(self) -> int:
        """Elements of keys and values that one token adds over all layers (times bytes per element = KV size)."""
        return sum(self.num_kv_heads) * (self.key_head_dim + self.value_head_dim)


def read_facts(path: Path) -> GgufFacts:
    """Checks a model file and returns its facts; loads no weights.

    Raises:
        ModelFileError: missing, unreadable, not GGUF, cut, a split part, or not a text generation model. The message
            names the file and what is wrong with it, the hint says what to do.
    """
    try:
        size_bytes = _file_size(path)
        header = read_header(path, size_bytes)
        _check_kind(header)
        _check_not_split(header)
        _check_tokenizer(header)
        _check_complete(header, size_bytes)
        return _facts_of(header, size_bytes, _fingerprint(path, header, size_bytes))
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error.message}", code=error.code, hint=error.hint) from error
    except OSError as error:
        raise ModelFileError(
            f"{path}: the file cannot be read ({error.strerror}).", hint="Check the path and its permissions."
        ) from error


def _file_size(path: Path) -> int:
    if not path.exists():
        raise ModelFileError("there is no such file.", hint="Check the path; `ultrafast models list` shows named models.")
    if not path.is_file():
        raise ModelFileError("this is not a file.", hint="Give the path of one .gguf file, not of its folder.")
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        raise ModelFileError("the file is empty.", hint=HINT_DAMAGED)
    return size_bytes


def _check_kind(header: GgufHeader) -> None:
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelFileError(
            f"this is a file of type {kind!r}, not a model.",
            hint="An adapter or projector needs its base model: give the base model's file.",
        )
    architecture = _text(header, "general.architecture")
    for group, names in _NO_TEXT_GENERATION.items():
        if architecture in names:
            raise ModelFileError(f"architecture {architecture!r} is {group}-only: no text generation.", hint=_HINT_TEXT_MODEL)
    is_causal = header.metadata.get(f"{architecture}.attention.causal", True)
    pooling = header.metadata.get(f"{architecture}.pooling_type", 0)
    if is_causal is False or pooling != 0:
        raise ModelFileError("this is an embedding or reranking model: no text generation.", hint=_HINT_TEXT_MODEL)


def _check_not_split(header: GgufHeader) -> None:
    num_parts = _optional_number(header, "split.count") or 0
    if num_parts > 1:
        part = (_optional_number(header, "split.no") or 0) + 1
        raise ModelFileError(
            f"this is part {part} of a model split into {num_parts} files.",
            hint="Merge the parts first: llama-gguf-split --merge FIRST_PART.gguf MERGED.gguf",
        )


def _check_tokenizer(header: GgufHeader) -> None:
    model = header.metadata.get("tokenizer.ggml.model", "none")
    if model in ("none", "no_vocab") or _num_vocabulary(header) == 0:
        raise ModelFileError(
            "the file has no tokenizer.", hint="Take a complete file of the model: this one holds weights without a vocabulary."
        )


def _num_vocabulary(header: GgufHeader) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, LongArray):
        return tokens.length if tokens.item_type is ValueType.STRING else 0
    return len(tokens) if isinstance(tokens, tuple) else 0


def _check_complete(header: GgufHeader, size_bytes: int) -> None:
    if not header.tensors:
        raise ModelFileError("the file has no tensors.", hint="It holds a vocabulary or metadata only; take the model itself.")
    data_start = _data_start(header)
    end = data_start
    for tensor in header.tensors:
        end = max(end, data_start + tensor.offset + tensor_bytes(tensor))
    if end > size_bytes:
        raise ModelFileError(
            f"the file is cut: its tensors need {end:,} bytes, it has {size_bytes:,}.", hint="Download it again, completely."
        )


def _data_start(header: GgufHeader) -> int:
    alignment = _optional_number(header, "general.alignment") or DEFAULT_ALIGNMENT
    if alignment < 1 or alignment & (alignment - 1):
        raise ModelFileError(f"the header is damaged: alignment {alignment} is no power of two.", hint=HINT_DAMAGED)
    return -(-header.num_bytes // alignment) * alignment


def _facts_of(header: GgufHeader, size_bytes: int, fingerprint: str) -> GgufFacts:
    architecture = _text(header, "general.architecture")
    num_layers = _number(header, f"{architecture}.block_count")
    if num_layers > MAX_LAYERS:
        raise _missing(f"{architecture}.block_count", f"at most {MAX_LAYERS}", num_layers)
    embedding_length = _number(header, f"{architecture}.embedding_length")
    num_heads = _per_layer(header, f"{architecture}.attention.head_count", num_layers, default=(0,) * num_layers)
    num_kv_heads = _per_layer(header, f"{architecture}.attention.head_count_kv", num_layers, default=num_heads)
    most_heads = max(num_heads, default=0)
    head_dim = embedding_length // most_heads if most_heads else 0
    name = header.metadata.get("general.name")
    return GgufFacts(
        architecture=architecture,
        name=name if isinstance(name, str) else None,
        context_length=_number(header, f"{architecture}.context_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        key_head_dim=_optional_number(header, f"{architecture}.attention.key_length") or head_dim,
        value_head_dim=_optional_number(header, f"{architecture}.attention.value_length") or head_dim,
        embedding_length=embedding_length,
        vocab_size=_num_vocabulary(header),
        num_parameters=_num_parameters(header),
        quantisation=_quantisation(header),
        has_chat_template=isinstance(header.metadata.get("tokenizer.chat_template"), str),
        sliding_window=_optional_number(header, f"{architecture}.attention.sliding_window") or None,
        has_recurrent_layers=any(key.startswith((f"{architecture}.ssm.", f"{architecture}.wkv.")) for key in header.metadata),
        size_bytes=size_bytes,
        fingerprint=fingerprint,
    )


def _quantisation(header: GgufHeader) -> str:
    file_type = _optional_number(header, "general.file_type")
    return "unknown" if file_type is None else FILE_TYPE_NAMES.get(file_type, "unknown")


def _num_parameters(header: GgufHeader) -> int:
    total = 0
    for tensor in header.tensors:
        num_elements = 1
        for dim in tensor.dims:
            num_elements *= dim
        total += num_elements
    return total


def _fingerprint(path: Path, header: GgufHeader, size_bytes: int) -> str:
    digest = hashlib.sha256(f"{header.sha256}:{size_bytes}".encode())
    last_start = max(size_bytes - _SAMPLE_BYTES, 0)
    with path.open("rb") as file:
        for i in range(_NUM_SAMPLES):
            file.seek(header.num_bytes + (last_start - header.num_bytes) * i // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _text(header: GgufHeader, key: str) -> str:
    value = header.metadata.get(key)
    if isinstance(value, str) and value:
        return value
    raise _missing(key, "a text", value)


def _number(header: GgufHeader, key: str) -> int:
    value = _optional_number(header, key)
    if value is None or value < 1:
        raise _missing(key, "a positive number", value)
    return value


def _optional_number(header: GgufHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _missing(key, "a whole number", value)
    return value


def _per_layer(header: GgufHeader, key: str, num_layers: int, *, default: tuple[int, ...]) -> tuple[int, ...]:
    """A count that the file gives once for all layers or as one number per layer."""
    value = header.metadata.get(key)
    if not isinstance(value, tuple):
        number = _optional_number(header, key)
        return default if number is None else (number,) * num_layers
    numbers = tuple(item for item in value if isinstance(item, int) and item >= 0)
    if len(numbers) != num_layers or len(value) != num_layers:
        raise _missing(key, f"one number for each of {num_layers} layers", f"{len(value)} values")
    return numbers


def _missing(key: str, wanted: str, found: object) -> ModelFileError:
    return ModelFileError(
        f"metadata key {key!r} must be {wanted}, found {found!r:.60}.",
        hint="The file was converted incompletely or is damaged; take another file of the same model.",
    )
