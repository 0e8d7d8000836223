"""The disk level on a real folder: what a killed process leaves, a full disk, two servers, foreign and damaged files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ultrafast.core.step import KvMoved, ReadRun, WriteRun
from ultrafast.engine.assembly import fake_facts
from ultrafast.engine.kvstore import run_file
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.kvstore.setup import open_levels
from ultrafast.engine.options import EngineOptions
from ultrafast.kv.digest import next_digest
from ultrafast.kv.run import FoundRun

KEY = b"k" * 16
PARENT = b"p" * 16
_DEADLINE_S = 60.0

_WRITER = """
import sys
from pathlib import Path
from ultrafast.core.step import WriteRun
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.kv.digest import next_digest

store = DiskStore(Path(sys.argv[1]), b"k" * 16, lambda line: None)
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


def write(store: DiskStore, *names: int) -> None:
    for name in names:
        tokens = (name,)
        store.submit((WriteRun(name, PARENT, next_digest(PARENT, tokens), 0, tokens), memoryview(b"%d" % name * 1000)))
    wait_for(store, len(names))


def test_whatever_moment_the_process_is_killed_at_no_wrong_byte_is_read(tmp_path: Path) -> None:
    for delay_s in (0.0, 0.013, 0.037):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = DiskStore(tmp_path, KEY, lambda _line: None)
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
    store = DiskStore(tmp_path, KEY, lambda _line: None)
    write(store, 1, 2, 3)
    store.close()
    folder = tmp_path / KEY.hex()
    first, second, third = sorted(folder.glob("*.kv"))
    first.write_bytes(first.read_bytes()[:50])
    second.rename(folder / ("0" * 32 + ".kv"))
    (folder / "half.tmp").write_bytes(b"half")
    store = DiskStore(tmp_path, KEY, lambda _line: None)
    assert [run.digest.hex() for run in store.scan()] == [third.stem]
    store.close()
    assert sorted(folder.glob("*")) == [folder / ".lock", third]


def test_a_file_that_was_damaged_after_the_scan_is_a_miss_with_a_line(tmp_path: Path) -> None:
    lines: list[str] = []
    store = DiskStore(tmp_path, KEY, lines.append)
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
    store = DiskStore(tmp_path, KEY, lines.append)
    for name in (1, 2):
        store.submit((WriteRun(name, PARENT, next_digest(PARENT, (name,)), 0, (name,)), memoryview(b"data")))
    answers = wait_for(store, 2)
    store.close()
    assert all(moved.is_broken and not moved.is_ok for moved, _ in answers)
    assert len(lines) == 1
    assert "No space left" in lines[0]
    assert [path.name for path in (tmp_path / KEY.hex()).iterdir()] == [".lock"]


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, KEY, lambda _line: None)
    with pytest.raises(BlockingIOError):
        DiskStore(tmp_path, KEY, lambda _line: None)
    other_model = DiskStore(tmp_path, b"m" * 16, lambda _line: None)
    other_model.close()
    store.close()
    DiskStore(tmp_path, KEY, lambda _line: None).close()


def test_other_models_files_count_and_go_first_unless_their_server_runs(tmp_path: Path) -> None:
    other = DiskStore(tmp_path, b"o" * 16, lambda _line: None)
    write(other, 1, 2, 3)
    other.close()
    own = DiskStore(tmp_path, KEY, lambda _line: None)
    write(own, 4)
    size = next((tmp_path / KEY.hex()).glob("*.kv")).stat().st_size
    running = DiskStore(tmp_path, b"o" * 16, lambda _line: None)
    own.prune_others(2 * size)
    assert len(running.scan()) == 3, "its server runs"
    running.close()
    own.prune_others(2 * size)
    assert len(list((tmp_path / (b"o" * 16).hex()).glob("*.kv"))) == 1
    assert len(own.scan()) == 1
    own.close()


def test_a_folder_that_cannot_be_used_leaves_the_level_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    options = EngineOptions("model", kv_host_bytes=1 << 20, kv_disk_bytes=1 << 20, kv_disk_path=str(tmp_path / "file"))
    levels = open_levels(options, fake_facts(options), KEY, 1 << 30)
    assert levels.disk is None
    assert levels.limits is not None
    assert levels.limits.disk_bytes == 0
    assert "disk is off" in caplog.text
