"""The contract of `engine.kvstore.store.RunStore`, the same for the disk and for the one in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sim.memory_store import MemoryStore

from ultrafast.core.clock import ManualClock
from ultrafast.core.step import DeleteRun, KvMoved, ReadRun, WriteRun
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.kvstore.store import RunStore
from ultrafast.kv.digest import next_digest

PARENT = b"p" * 16


class Asked:
    """Submits jobs and waits for their answers."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.woken = threading.Event()
        store.on_done(self.woken.set)

    def __call__(self, job: object, num_answers: int = 1) -> list[tuple[KvMoved, memoryview | None]]:
        self.store.submit(job)  # type: ignore[arg-type]
        answers: list[tuple[KvMoved, memoryview | None]] = []
        deadline_s = time.monotonic() + 60
        while len(answers) < num_answers:
            assert time.monotonic() < deadline_s, "no answer"
            self.woken.wait(0.05)
            answers += self.store.poll()
        return answers


@pytest.fixture(params=["disk", "memory"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Asked]:
    if request.param == "memory":
        yield Asked(MemoryStore(ManualClock(), bytes_per_s=float("inf")))
        return
    store = DiskStore(tmp_path, b"k" * 16, 1 << 30, lambda _line: None)
    yield Asked(store)
    store.close()


def write(run_id: int, tokens: tuple[int, ...], data: bytes) -> tuple[WriteRun, memoryview]:
    return WriteRun(run_id, PARENT, next_digest(PARENT, tokens), 0, tokens), memoryview(data)


def read(run_id: int, tokens: tuple[int, ...], num_bytes: int = 1 << 20) -> ReadRun:
    return ReadRun(run_id, PARENT, next_digest(PARENT, tokens), 0, tokens, num_bytes)


def test_a_run_comes_back_byte_for_byte(ask: Asked) -> None:
    data = bytes(range(256)) * 100
    [(written, nothing)] = ask(write(1, (1, 2, 3), data))
    assert (written.run_id, written.way, written.is_ok, written.num_bytes, nothing) == (1, "write", True, len(data), None)
    [(moved, got)] = ask(read(2, (1, 2, 3)))
    assert (moved.run_id, moved.way, moved.is_ok, moved.num_bytes) == (2, "read", True, len(data))
    assert got is not None
    assert bytes(got) == data


def test_what_was_never_written_or_is_deleted_is_a_miss(ask: Asked) -> None:
    [(moved, got)] = ask(read(1, (9, 9)))
    assert (moved.is_ok, moved.is_broken, got) == (False, False, None)
    ask(write(2, (1, 2), b"data"))
    ask.store.submit(DeleteRun(2, next_digest(PARENT, (1, 2))))
    time.sleep(0)
    [(moved, got)] = _read_after_delete(ask)
    assert (moved.is_ok, got) == (False, None)


def _read_after_delete(ask: Asked) -> list[tuple[KvMoved, memoryview | None]]:
    """Reads go before deletions: ask until the deletion was done."""
    for _ in range(1000):
        answers = ask(read(3, (1, 2)))
        if not answers[0][0].is_ok:
            return answers
    raise AssertionError("never deleted")


def test_each_job_is_answered_once(ask: Asked) -> None:
    for run_id in range(1, 11):
        ask.store.submit(write(run_id, (run_id,), b"x" * run_id))
    answers = ask(read(11, (1, 1)), num_answers=11)
    assert sorted(moved.run_id for moved, _ in answers) == list(range(1, 12))
    assert ask.store.poll() == []


def test_writing_a_run_again_replaces_it(ask: Asked) -> None:
    ask(write(1, (5,), b"old"))
    ask(write(2, (5,), b"new"))
    [(_, got)] = ask(read(3, (5,)))
    assert got is not None
    assert bytes(got) == b"new"
