"""Builds tiny GGUF files by hand, byte by byte, so that the reader is not tested with itself."""

import struct
from typing import Any

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(type_id: int, item: Any) -> bytes:
    if type_id == STRING:
        return text(item)
    if type_id == ARRAY:
        item_type, items = item
        return struct.pack("<IQ", item_type, len(items)) + b"".join(value(item_type, each) for each in items)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?", U64: "<Q"}[type_id], item)


def entry(key: str, type_id: int, item: Any) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value(type_id, item)


def tensor(name: str, dims: tuple[int, ...], type_id: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def llama_metadata() -> dict[str, tuple[int, Any]]:
    """Key -> (type, value) of a complete little decoder."""
    return {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, "tiny"),
        "general.file_type": (U32, 3),
        "llama.context_length": (U32, 128),
        "llama.block_count": (U32, 2),
        "llama.embedding_length": (U32, 64),
        "llama.attention.head_count": (U32, 4),
        "llama.attention.head_count_kv": (U32, 2),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, ["a", "b", "ä"])),
        "tokenizer.chat_template": (STRING, "{{ messages }}"),
    }


TENSORS = (("token_embd.weight", (64, 3), 0, 0), ("blk.0.attn_q.weight", (64, 64), 3, 768))
"""192 F32 elements in 768 bytes, then 4096 Q4_1 elements in 128 blocks of 20 bytes."""
DATA_BYTES = 768 + 2560


def build(
    metadata: dict[str, tuple[int, Any]] | None = None,
    tensors: tuple[tuple[str, tuple[int, ...], int, int], ...] = TENSORS,
    *,
    version: int = 3,
    data_bytes: int = DATA_BYTES,
) -> bytes:
    """A whole file: header, padding to 32, data."""
    metadata = llama_metadata() if metadata is None else metadata
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(entry(key, type_id, item) for key, (type_id, item) in metadata.items())
    head += b"".join(tensor(*row) for row in tensors)
    head += b"\0" * (-len(head) % 32)
    return head + bytes(i % 251 for i in range(data_bytes))
