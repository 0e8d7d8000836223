"""The disk level on a real folder: what a killed process leaves, a full disk, two servers, foreign and damaged files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ultrafast.core.step import DeleteRun, KvMoved, ReadRun, WriteRun
from ultrafast.engine.assembly import fake_facts
from ultrafast.engine.kvstore import others, run_file
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.kvstore.setup import open_levels
from ultrafast.engine.options import EngineOptions
from ultrafast.kv.digest import next_digest
from ultrafast.kv.run import FoundRun

KEY = b"k" * 16
PARENT = b"p" * 16
OTHER = b"o" * 16
QUOTA = 1 << 40
SIZE = run_file.file_bytes(1, 1000)
_DEADLINE_S = 60.0

_WRITER = """
import sys
from pathlib import Path
from ultrafast.core.step import WriteRun
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.kv.digest import next_digest

store = DiskStore(Path(sys.argv[1]), b"k" * 16, 1 << 40, lambda line: None)
done = 0
for run_id in range(1, 100_000):
    tokens = (run_id, run_id + 1)
    data = (b"%08d" % run_id) * 50_000
    store.submit((WriteRun(run_id, b"p" * 16, next_digest(b"p" * 16, tokens), 0, tokens), memoryview(data)))
    while done < run_id - 4:
        done += len(store.poll())
    if run_id == 20:
        print("writing", flush=True)
"""


def wait_for(store: DiskStore, num_answers: int) -> list[tuple[KvMoved, memoryview | None]]:
    answers: list[tuple[KvMoved, memoryview | None]] = []
    deadline_s = time.monotonic() + _DEADLINE_S
    while len(answers) < num_answers:
        assert time.monotonic() < deadline_s, "no answer"
        answers += store.poll()
        time.sleep(0.002)
    return answers


def read_all(store: DiskStore, found: list[FoundRun]) -> list[tuple[KvMoved, memoryview | None]]:
    for number, run in enumerate(found):
        store.submit(ReadRun(number, run.parent, run.digest, run.start, run.tokens, run.num_bytes))
    return wait_for(store, len(found))


def store_write(store: DiskStore, name: int) -> None:
    tokens = (name,)
    store.submit((WriteRun(name, PARENT, next_digest(PARENT, tokens), 0, tokens), memoryview(b"%d" % name * 1000)))


def write(store: DiskStore, *names: int) -> None:
    """Write runs whose files have SIZE bytes each."""
    for name in names:
        store_write(store, name)
    assert all(moved.is_ok for moved, _ in wait_for(store, len(names)))


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.*"))


def test_whatever_moment_the_process_is_killed_at_no_wrong_byte_is_read(tmp_path: Path) -> None:
    for delay_s in (0.0, 0.013, 0.037):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = DiskStore(tmp_path, KEY, QUOTA, lambda _line: None)
        found = store.scan()
        assert len(found) >= 15
        for moved, data in read_all(store, found):
            assert moved.is_ok
            assert data is not None
            assert bytes(data[:8]) * 50_000 == data
            assert found[moved.run_id].tokens[0] == int(bytes(data[:8]))
        store.close()
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_damaged_and_a_foreign_file_are_gone_after_the_scan(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, KEY, QUOTA, lambda _line: None)
    write(store, 1, 2, 3)
    store.close()
    folder = tmp_path / KEY.hex()
    first, second, third = sorted(folder.glob("*.kv"))
    first.write_bytes(first.read_bytes()[:50])
    second.rename(folder / ("0" * 32 + ".kv"))
    (folder / "half.tmp").write_bytes(b"half")
    store = DiskStore(tmp_path, KEY, QUOTA, lambda _line: None)
    assert [run.digest.hex() for run in store.scan()] == [third.stem]
    store.close()
    assert sorted(folder.glob("*")) == [folder / ".lock", third]


def test_a_file_that_was_damaged_after_the_scan_is_a_miss_with_a_line(tmp_path: Path) -> None:
    lines: list[str] = []
    store = DiskStore(tmp_path, KEY, QUOTA, lines.append)
    write(store, 1)
    found = store.scan()
    [path] = (tmp_path / KEY.hex()).glob("*.kv")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    [(moved, data)] = read_all(store, found)
    store.close()
    assert (moved.is_ok, moved.is_broken, data) == (False, False, None)
    assert "damaged" in lines[0]


def test_a_full_disk_is_said_once_and_ends_the_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_fd: int, _data: memoryview) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_file, "_write_all", no_space)
    lines: list[str] = []
    store = DiskStore(tmp_path, KEY, QUOTA, lines.append)
    for name in (1, 2):
        store.submit((WriteRun(name, PARENT, next_digest(PARENT, (name,)), 0, (name,)), memoryview(b"data")))
    answers = wait_for(store, 2)
    store.close()
    assert all(moved.is_broken and not moved.is_ok for moved, _ in answers)
    assert len(lines) == 1
    assert "No space left" in lines[0]
    assert [path.name for path in (tmp_path / KEY.hex()).iterdir()] == [".lock"]


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, KEY, QUOTA, lambda _line: None)
    with pytest.raises(BlockingIOError):
        DiskStore(tmp_path, KEY, QUOTA, lambda _line: None)
    other_model = DiskStore(tmp_path, b"m" * 16, QUOTA, lambda _line: None)
    other_model.close()
    store.close()
    DiskStore(tmp_path, KEY, QUOTA, lambda _line: None).close()


def test_other_models_files_count_and_go_first_unless_their_server_runs(tmp_path: Path) -> None:
    other = DiskStore(tmp_path, OTHER, QUOTA, lambda _line: None)
    write(other, 1, 2, 3)
    other.close()
    DiskStore(tmp_path, KEY, QUOTA, lambda _line: None).close()
    running = DiskStore(tmp_path, OTHER, QUOTA, lambda _line: None)
    own = DiskStore(tmp_path, KEY, 2 * SIZE, lambda _line: None)
    write(own, 4)
    assert own.scan()
    assert len(running.scan()) == 3, "its server runs"
    running.close()
    own.close()
    own = DiskStore(tmp_path, KEY, 2 * SIZE, lambda _line: None)
    assert len(own.scan()) == 1
    assert len(list((tmp_path / OTHER.hex()).glob("*.kv"))) == 1
    own.close()


def test_the_folder_never_holds_more_than_the_quota_while_it_is_written_to(tmp_path: Path) -> None:
    other = DiskStore(tmp_path, OTHER, QUOTA, lambda _line: None)
    write(other, 1, 2, 3)
    other.close()
    (tmp_path / OTHER.hex() / "half.tmp").write_bytes(b"h" * SIZE)  # of a process that was killed
    lines: list[str] = []
    own = DiskStore(tmp_path, KEY, 4 * SIZE, lines.append)
    own.scan()
    for name in (5, 6, 7, 8):
        write(own, name)
        assert folder_bytes(tmp_path) <= 4 * SIZE
    assert len(list((tmp_path / KEY.hex()).glob("*.kv"))) == 4, "what nobody serves makes room"
    assert not list((tmp_path / OTHER.hex()).glob("*.[kt]*"))
    assert "of other models were deleted" in lines[0]
    own.close()


def test_what_was_left_by_a_server_that_came_and_went_makes_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = DiskStore(tmp_path, KEY, 3 * SIZE, lambda _line: None)
    own.scan()
    write(own, 1)
    other = DiskStore(tmp_path, OTHER, QUOTA, lambda _line: None)
    write(other, 1, 2)
    other.close()
    monkeypatch.setattr(others, "LOOK_AGAIN_S", -1.0)
    write(own, 2)
    assert folder_bytes(tmp_path) == 3 * SIZE
    own.close()


def test_what_does_not_fit_is_not_written_and_said_once(tmp_path: Path) -> None:
    lines: list[str] = []
    own = DiskStore(tmp_path, KEY, SIZE, lines.append)
    write(own, 1)
    for name in (2, 3):
        store_write(own, name)
    answers = wait_for(own, 2)
    own.close()
    assert [(moved.is_ok, moved.is_broken) for moved, _ in answers] == [(False, False)] * 2
    assert len(lines) == 1
    assert folder_bytes(tmp_path) == SIZE


# -- a disk that goes away ----------------------------------------------------------------------------------------------------


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let these functions of `os` fail on files of runs, as on a file system that was remounted read-only."""

    def break_down(*names: str) -> None:
        for name in names:
            monkeypatch.setattr(os, name, _refusing(getattr(os, name)))

    return break_down


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(path: Any, *arguments: Any, **kind: Any) -> Any:
        if isinstance(path, str | Path) and Path(path).suffix in (".kv", ".tmp"):
            raise OSError(errno.EROFS, "Read-only file system")
        return function(path, *arguments, **kind)

    return refuse


def test_a_time_that_cannot_be_set_spoils_no_read(tmp_path: Path, read_only: Callable[..., None]) -> None:
    lines: list[str] = []
    store = DiskStore(tmp_path, KEY, QUOTA, lines.append)
    write(store, 1)
    found = store.scan()
    read_only("utime")
    [(moved, data)] = read_all(store, found)
    store.close()
    assert moved.is_ok
    assert data is not None
    assert not lines


def test_a_deletion_that_fails_ends_the_level_and_every_job_is_answered(tmp_path: Path, read_only: Callable[..., None]) -> None:
    lines: list[str] = []
    store = DiskStore(tmp_path, KEY, QUOTA, lines.append)
    write(store, 1, 2)
    found = store.scan()
    read_only("unlink")
    for run in found:
        store.submit(DeleteRun(int(run.tokens[0]), run.digest))
    [(moved, _)] = wait_for(store, 1)
    assert (moved.way, moved.is_ok, moved.is_broken) == ("delete", False, True)
    answers = read_all(store, found)
    store_write(store, 3)
    answers += wait_for(store, 1)
    store.close()
    assert [(moved.is_ok, moved.is_broken, data) for moved, data in answers] == [(False, True, None)] * 3
    assert len(lines) == 1
    assert "is off" in lines[0]


def test_what_nobody_thought_of_ends_the_level_and_not_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_arguments: object) -> None:
        raise MemoryError

    lines: list[str] = []
    store = DiskStore(tmp_path, KEY, QUOTA, lines.append)
    write(store, 1)
    monkeypatch.setattr(DiskStore, "_read_file", no_memory)
    [(moved, _)] = read_all(store, store.scan())
    assert (moved.way, moved.is_broken) == ("read", True)
    store_write(store, 2)
    [(moved, _)] = wait_for(store, 1)
    assert (moved.way, moved.is_broken) == ("write", True)
    store.close()
    assert "MemoryError" in lines[0]


def test_a_useless_file_that_cannot_be_deleted_stops_no_start_and_counts(tmp_path: Path, read_only: Callable[..., None]) -> None:
    lines: list[str] = []
    store = DiskStore(tmp_path, KEY, QUOTA, lambda _line: None)
    write(store, 1)
    store.close()
    (tmp_path / KEY.hex() / "half.tmp").write_bytes(b"h" * SIZE)
    read_only("unlink")
    store = DiskStore(tmp_path, KEY, 2 * SIZE, lines.append)
    assert len(store.scan()) == 1
    assert "cannot be deleted" in lines[0]
    store_write(store, 2)
    [(moved, _)] = wait_for(store, 1)
    store.close()
    assert not moved.is_ok
    assert folder_bytes(tmp_path) == 2 * SIZE


def test_a_folder_that_cannot_be_listed_leaves_the_level_off_and_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_disk(_path: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    options = EngineOptions("model", kv_host_bytes=1 << 20, kv_disk_bytes=1 << 20, kv_disk_path=str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(DiskStore, "scan", broken_disk)
        levels = open_levels(options, fake_facts(options), KEY, 1 << 30)
    assert levels.disk is None
    assert levels.limits is not None
    assert levels.limits.disk_bytes == 0
    assert "Input/output error" in caplog.text
    DiskStore(tmp_path, KEY, QUOTA, lambda _line: None).close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", broken_disk)
        assert open_levels(options, fake_facts(options), KEY, 1 << 30).disk is None


def test_a_folder_that_cannot_be_used_leaves_the_level_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    options = EngineOptions("model", kv_host_bytes=1 << 20, kv_disk_bytes=1 << 20, kv_disk_path=str(tmp_path / "file"))
    levels = open_levels(options, fake_facts(options), KEY, 1 << 30)
    assert levels.disk is None
    assert levels.limits is not None
    assert levels.limits.disk_bytes == 0
    assert "disk is off" in caplog.text
