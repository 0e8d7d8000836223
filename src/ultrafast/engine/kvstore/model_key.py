"""The key of everything that KV depends on: with an equal key, and only then, one engine's KV is right for another.

KV that stays in this process' memory is this engine's anyway. KV on disk may be another's, of a model file with one tensor or one
line of its vocabulary changed: where there is a disk level, all of the file's content is in the key (see `file_hash`).

The name of a model file is less: its content is sampled, its first and last megabyte and pieces in between, and its size.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from ultrafast.engine.kvstore.file_hash import Identity, file_hash
from ultrafast.engine.options import EngineFacts, EngineOptions
from ultrafast.kv.digest import DIGEST_BYTES

_EDGE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
_NUM_PIECES = 64


def model_key(options: EngineOptions, facts: EngineFacts, loaded: Identity | None = None) -> bytes:
    """Return the key of this engine.

    Args:
        options: without a disk level the content is only sampled.
        facts: what the engine really got.
        loaded: what the model file was when it began to be loaded; None = not known.

    Raises:
        OSError: the model file cannot be read, or is not the one that was loaded any more.
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
    path = Path(options.model_path)
    if not options.kv_disk_bytes or options.kv_disk_path is None:
        _add_samples(digest, path)
        return digest.digest()
    content, identity = file_hash(path, Path(options.kv_disk_path))
    if loaded is not None and identity != loaded:
        raise OSError(f"{path} was changed while it was loaded")
    digest.update(content)
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
