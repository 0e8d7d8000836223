"""The key of KV on disk: any change of the model file changes it, and an unchanged file is read once."""

import os
import time
from dataclasses import replace

import pytest

from ultrafast.engine import assembly
from ultrafast.engine.assembly import fake_facts
from ultrafast.engine.kvstore import file_hash
from ultrafast.engine.kvstore.file_hash import PIECE_BYTES, identify
from ultrafast.engine.kvstore.model_key import model_key
from ultrafast.engine.options import EngineOptions

SIZE = 2 * PIECE_BYTES + 12_345
UNSAMPLED = PIECE_BYTES + PIECE_BYTES // 7
"""A position that no sample of the content covers."""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(SIZE))
    os.utime(path, (0, 0))
    return path


@pytest.fixture
def options(model, tmp_path):
    return EngineOptions(str(model), kv_host_bytes=1, kv_disk_bytes=1, kv_disk_path=str(tmp_path / "kv"))


@pytest.fixture
def later(monkeypatch):
    """The clock is ahead: files that were just made have been as they are for long."""
    now = time.time_ns() + 10 * file_hash.SETTLED_NS
    monkeypatch.setattr(file_hash.time, "time_ns", lambda: now)


def key(options, **facts):
    return model_key(options, replace(fake_facts(options), **facts))


def change(path):
    """One byte, and the time of modification as it was."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(UNSAMPLED)
        file.write(b"x")
    time.sleep(0.02)  # more than a tick of the file system's clock
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.usefixtures("later")
def test_a_changed_byte_changes_the_key_even_with_the_old_size_and_time(model, options):
    before = key(options)
    assert key(options) == before
    sampled = key(replace(options, kv_disk_bytes=0))
    change(model)
    assert key(options) != before
    assert key(replace(options, kv_disk_bytes=0)) == sampled, "the byte is one that the samples miss"


def test_a_copy_of_the_file_is_the_same_model_and_other_types_are_another(model, options, tmp_path):
    copy = tmp_path / "elsewhere.gguf"
    copy.write_bytes(model.read_bytes())
    assert key(replace(options, model_path=str(copy))) == key(options)
    assert key(options, kv_type_k="q8_0") != key(options)


@pytest.mark.usefixtures("later")
def test_an_unchanged_file_is_read_once(options, monkeypatch):
    before = key(options)
    monkeypatch.setattr(file_hash, "_compute", lambda *_: pytest.fail("it is read again"))
    assert key(options) == before


def test_a_file_that_has_just_changed_is_not_remembered(options, tmp_path):
    key(options)
    assert not (tmp_path / "kv").exists()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("content", [b"", b"[]", b'[[1,2,3,4,5],"AAAA"]', b"\xff"])
def test_a_damaged_memory_is_not_believed(options, tmp_path, content):
    before = key(options)
    [note] = (tmp_path / "kv").glob("*.hash")
    note.write_bytes(content)
    assert key(options) == before
    note.unlink()
    note.mkdir()
    assert key(options) == before, "what cannot be remembered is computed"


def test_a_file_that_changes_while_it_is_read_is_read_again_but_not_for_ever(model, options, monkeypatch):
    compute, calls = file_hash._compute, []

    def changing(path, size):
        digest = compute(path, size)
        calls.append(path)
        if len(calls) == 1:
            change(model)
        return digest

    monkeypatch.setattr(file_hash, "_compute", changing)
    once = key(options)
    assert len(calls) == 2
    assert key(options) == once
    monkeypatch.setattr(file_hash, "_compute", lambda *_: change(model) or b"")
    with pytest.raises(OSError, match="is being changed"):
        key(options)


def test_a_file_that_is_not_the_one_that_was_loaded_has_no_key_and_the_disk_stays_off(model, options, caplog):
    loaded = identify(model)
    facts = fake_facts(options)
    assert model_key(options, facts, loaded) == key(options)
    change(model)
    with pytest.raises(OSError, match="while it was loaded"):
        model_key(options, facts, loaded)
    without, _ = assembly._keyed(options, facts, loaded)
    assert without.kv_disk_bytes == 0
    assert "disk is off" in caplog.text
