"""Run files: whatever is changed in one, it is a miss and never other bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ultrafast.engine.kvstore.run_file import BadFileError, RunHeader, file_name, read_header, read_payload, write_file
from ultrafast.kv.digest import next_digest

KEY = b"k" * 16
PARENT = b"p" * 16
TOKENS = tuple(range(40))
DIGEST = next_digest(PARENT, TOKENS)
DATA = bytes(range(256)) * 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / file_name(DIGEST)
    write_file(path, KEY, PARENT, DIGEST, 128, TOKENS, memoryview(DATA))
    return path


def read(path: Path, key: bytes = KEY) -> tuple[RunHeader, bytes]:
    fd = os.open(path, os.O_RDONLY)
    try:
        header = read_header(fd, key)
        data = bytearray(header.payload_bytes)
        read_payload(fd, header, memoryview(data))
        return header, bytes(data)
    finally:
        os.close(fd)


def test_what_was_written_is_read(path: Path) -> None:
    header, data = read(path)
    assert data == DATA
    assert (header.parent, header.digest, header.start, header.tokens) == (PARENT, DIGEST, 128, TOKENS)


def test_nothing_but_the_file_is_left_and_only_its_owner_may_read_it(path: Path) -> None:
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0


def test_each_damaged_byte_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    prologue = len(whole) - len(DATA)
    for position in [*range(prologue), *range(prologue, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x20]) + whole[position + 1 :])
        with pytest.raises(BadFileError):
            read(path)


def test_each_cut_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 61), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(BadFileError):
            read(path)


def test_more_than_was_written_is_noticed(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BadFileError):
        read(path)


def test_another_models_file_is_not_read(path: Path) -> None:
    with pytest.raises(BadFileError, match="another model"):
        read(path, b"x" * 16)


def test_a_header_that_is_whole_but_lies_about_its_tokens_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "lie"
    write_file(path, KEY, PARENT, DIGEST, 0, (*TOKENS[:-1], 99), memoryview(DATA))
    with pytest.raises(BadFileError, match="digest"):
        read(path)


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_fd: int, _data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_space)
        with pytest.raises(OSError, match="No space"):
            write_file(path, KEY, PARENT, DIGEST, 0, TOKENS, memoryview(b"new"))
    assert read(path)[1] == DATA
    assert list(path.parent.iterdir()) == [path]
