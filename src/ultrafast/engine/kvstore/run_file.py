"""The file of one run, and the checks that make it safe to read.

    header   magic, version, model key, digest before, digest after, start, number of tokens, payload bytes, payload CRC-32,
             CRC-32 of the header and the tokens
    tokens   int32 each
    payload  the state as the engine gave it

A file is trusted only if every field fits: foreign, damaged, cut or half-written files are misses. Files appear by rename, so
a reader sees a whole file or none. Nothing is forced to the medium (no fsync): after a power loss the newest files may be
damaged, which their checksums tell; a cache does not owe durability.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path

from ultrafast.kv.digest import DIGEST_BYTES, next_digest
from ultrafast.kv.level import FILE_OVERHEAD_BYTES, FILE_TOKEN_BYTES

MAGIC = b"UFKVRUN\x00"
VERSION = 1
SUFFIX = ".kv"
TEMPORARY_SUFFIX = ".tmp"
_HEADER = struct.Struct(f"<8sI{DIGEST_BYTES}s{DIGEST_BYTES}s{DIGEST_BYTES}sIIQI")
_CRC = struct.Struct("<I")
_MAX_TOKENS = 1 << 22
assert _HEADER.size + _CRC.size <= FILE_OVERHEAD_BYTES, "the disk level charges too little for a file"


class BadFileError(Exception):
    """The file is not what its name says; it must not be used."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What a file says about itself."""

    model_key: bytes
    parent: bytes
    digest: bytes
    start: int
    tokens: tuple[int, ...]
    payload_bytes: int
    payload_crc: int

    @property
    def prologue_bytes(self) -> int:
        """Bytes before the payload."""
        return file_bytes(len(self.tokens), 0)

    @property
    def file_bytes(self) -> int:
        return file_bytes(len(self.tokens), self.payload_bytes)


def file_bytes(num_tokens: int, payload_bytes: int) -> int:
    """Size of the file of such a run; never more than what `kv.level` charges for it."""
    return _HEADER.size + _CRC.size + FILE_TOKEN_BYTES * num_tokens + payload_bytes


def file_name(digest: bytes) -> str:
    """Name of the file of a run."""
    return digest.hex() + SUFFIX


def write_file(
    path: Path, model_key: bytes, parent: bytes, digest: bytes, start: int, tokens: tuple[int, ...], data: memoryview
) -> int:
    """Write a run beside its place and rename it into it; returns the size of the file.

    Raises:
        OSError: no space, no folder, no right. Nothing is left behind.
    """
    token_bytes = array("i", tokens).tobytes()
    fields = _HEADER.pack(MAGIC, VERSION, model_key, parent, digest, start, len(tokens), len(data), zlib.crc32(data))
    head = fields + _CRC.pack(zlib.crc32(token_bytes, zlib.crc32(fields))) + token_bytes
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, memoryview(head))
            _write_all(fd, data)
        finally:
            os.close(fd)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return len(head) + len(data)


def _write_all(fd: int, data: memoryview) -> None:
    """A raw write may take less than it was given (a full disk, a signal)."""
    while data:
        data = data[os.write(fd, data) :]


def read_header(fd: int, model_key: bytes) -> RunHeader:
    """Read and check everything but the payload.

    Raises:
        BadFileError: another format, another model, damaged or cut.
        OSError: it cannot be read.
    """
    head = os.pread(fd, _HEADER.size + _CRC.size, 0)
    if len(head) < _HEADER.size + _CRC.size:
        raise BadFileError("the header is cut")
    magic, version, key, parent, digest, start, num_tokens, payload_bytes, payload_crc = _HEADER.unpack_from(head)
    if magic != MAGIC or version != VERSION:
        raise BadFileError("another format")
    if num_tokens > _MAX_TOKENS:
        raise BadFileError("the header is damaged")
    token_bytes = os.pread(fd, 4 * num_tokens, len(head))
    (crc,) = _CRC.unpack_from(head, _HEADER.size)
    if len(token_bytes) != 4 * num_tokens or crc != zlib.crc32(token_bytes, zlib.crc32(head[: _HEADER.size])):
        raise BadFileError("the header is damaged")
    if key != model_key:
        raise BadFileError("of another model")
    tokens = array("i", token_bytes)
    if not num_tokens or digest != next_digest(parent, tokens):
        raise BadFileError("the digest does not fit the tokens")
    header = RunHeader(key, parent, digest, start, tuple(tokens), payload_bytes, payload_crc)
    if os.fstat(fd).st_size != header.file_bytes:
        raise BadFileError("the payload is cut, or there is more than it")
    return header


def read_payload(fd: int, header: RunHeader, into: memoryview) -> None:
    """Read and check the payload.

    Raises:
        BadFileError: damaged, or changed since the header was read.
        OSError: it cannot be read.
    """
    done, offset = 0, header.prologue_bytes
    while done < len(into):
        count = os.preadv(fd, [into[done:]], offset + done)
        if count == 0:
            raise BadFileError("the payload is cut")
        done += count
    if zlib.crc32(into) != header.payload_crc:
        raise BadFileError("the payload is damaged")
