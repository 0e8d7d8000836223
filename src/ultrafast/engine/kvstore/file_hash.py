"""The hash of all of a file, which is remembered as long as the file stays as it is.

    hash = H(H(piece 1), H(piece 2), ...)     pieces of PIECE_BYTES, on all cores: about a second per gigabyte and core

A file is the same while its size, its times and its number are: its time of change is set by the kernel at every write, and by
nobody else. Only a write within the same tick of that clock goes unseen, so a file is not remembered before that is past.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path

import msgspec

from ultrafast.kv.digest import DIGEST_BYTES

PIECE_BYTES = 1 << 24
SETTLED_NS = 2_000_000_000
"""A file that was changed less than this before it was read is not remembered: longer than a tick of any file system."""
_MAX_THREADS = 8
_TRIES = 3

Identity = tuple[int, int, int, int, int]
"""Size, modification and change time, inode, device."""


class _Remembered(msgspec.Struct, frozen=True, array_like=True):
    identity: Identity
    digest: bytes


def identify(path: Path) -> Identity:
    """What of a file changes when its content does. Raises OSError."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


def file_hash(path: Path, memory: Path) -> tuple[bytes, Identity]:
    """Return the hash of a file's content, and of which state of the file it is.

    Args:
        path: the file.
        memory: folder in which the hash is remembered; when that cannot be, it is computed again the next time.

    Raises:
        OSError: the file cannot be read, or does not stop changing.
    """
    note = memory / f"{blake2b(os.fsencode(path.absolute()), digest_size=DIGEST_BYTES).hexdigest()}.hash"
    for _ in range(_TRIES):
        identity = identify(path)
        if (digest := _recall(note, identity)) is not None:
            return digest, identity
        digest = _compute(path, identity[0])
        if identify(path) == identity:
            if time.time_ns() - max(identity[1], identity[2]) > SETTLED_NS:
                _remember(note, _Remembered(identity, digest))
            return digest, identity
    raise OSError(f"{path} is being changed")


def _compute(path: Path, size: int) -> bytes:
    digest = blake2b(size.to_bytes(8, "little"), digest_size=DIGEST_BYTES, person=b"file")
    with path.open("rb") as file, ThreadPoolExecutor(min(_MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
        for piece in pool.map(partial(_piece, file.fileno()), range(0, size, PIECE_BYTES)):
            digest.update(piece)
    return digest.digest()


def _piece(fd: int, offset: int) -> bytes:
    """The hash of one piece; a cut file has shorter ones, and is found out by its identity."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    end = offset + PIECE_BYTES
    while offset < end and (data := os.pread(fd, min(1 << 20, end - offset), offset)):
        digest.update(data)
        offset += len(data)
    return digest.digest()


def _recall(note: Path, identity: Identity) -> bytes | None:
    try:
        found = msgspec.json.decode(note.read_bytes(), type=_Remembered)
    except (OSError, msgspec.DecodeError):
        return None
    return found.digest if found.identity == identity and len(found.digest) == DIGEST_BYTES else None


def _remember(note: Path, found: _Remembered) -> None:
    with contextlib.suppress(OSError):
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = note.with_suffix(".part")
        temporary.write_bytes(msgspec.json.encode(found))
        temporary.replace(note)
