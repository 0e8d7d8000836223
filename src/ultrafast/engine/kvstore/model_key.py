"""The key of everything that KV depends on: with an equal key, and only then, one engine's KV is right for another.

The content of the model file is sampled: its first and last megabyte and pieces in between, and its size. Reading all of a file
of many gigabytes at every start would cost more than the cache saves; two files that differ in none of the samples are the same
model for all that happens in practice.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from ultrafast.engine.options import EngineFacts, EngineOptions
from ultrafast.kv.digest import DIGEST_BYTES

_EDGE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
_NUM_PIECES = 64


def model_key(options: EngineOptions, facts: EngineFacts) -> bytes:
    """Return the key of this engine.

    Raises:
        OSError: the model file cannot be read.
    """
    settings = (
        facts.build,
        facts.kv_type_k,
        facts.kv_type_v,
        str(facts.has_flash_attention),
        str(options.swa_full),
        str(facts.can_trim),
    )
    digest = blake2b(digest_size=DIGEST_BYTES, person=b"kv-model")
    for setting in settings:
        digest.update(setting.encode() + b"\0")
    _add_samples(digest, Path(options.model_path))
    return digest.digest()


def model_hash(path: Path) -> str:
    """What names a model file's content, in hexadecimal: equal for copies of a file, whatever they are called.

    Raises:
        OSError: it cannot be read.
    """
    digest = blake2b(digest_size=DIGEST_BYTES, person=b"model")
    _add_samples(digest, path)
    return digest.hexdigest()


def _add_samples(digest: blake2b, path: Path) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        edges = [(0, _EDGE_BYTES), (max(0, size - _EDGE_BYTES), _EDGE_BYTES)]
        pieces = [(size * index // _NUM_PIECES, _PIECE_BYTES) for index in range(_NUM_PIECES)]
        for offset, length in edges + pieces:
            file.seek(offset)
            digest.update(file.read(length))
