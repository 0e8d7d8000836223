"""The disk level: a folder of run files and one thread that reads, writes and deletes them.

    PATH/<model key>/<digest>.kv      one run each
    PATH/<model key>/.lock            held by the one server that uses the folder

The engine thread submits and polls; it never waits here. Reads go first: a request waits for them, nobody waits for a write.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from ultrafast.core.step import DeleteRun, KvMoved, ReadRun, WriteRun
from ultrafast.engine.kvstore.others import LOCK_NAME, prune_others
from ultrafast.engine.kvstore.run_file import (
    SUFFIX,
    TEMPORARY_SUFFIX,
    BadFileError,
    file_name,
    read_header,
    read_payload,
    write_file,
)
from ultrafast.engine.kvstore.store import Job
from ultrafast.kv.run import FoundRun


class DiskStore:
    """See the module.

    Args:
        path: folder of all models; made when it is not there, readable by its owner only (KV says what was in the prompts).
        model_key: runs of other models are never read.
        log: takes a line for people.

    Raises:
        OSError: the folder cannot be used, or another server uses it (BlockingIOError).
    """

    def __init__(self, path: Path, model_key: bytes, log: Callable[[str], None]) -> None:
        self._folder = path / model_key.hex()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_fd)
            raise
        self._model_key = model_key
        self._log = log
        self._wake: Callable[[], None] = _do_nothing
        self._condition = threading.Condition()
        self._urgent: deque[Job] = deque()
        self._later: deque[Job] = deque()
        self._done: deque[tuple[KvMoved, memoryview | None]] = deque()  # appended by one thread, popped by the other
        self._is_closing = False
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    def prune_others(self, quota_bytes: int) -> None:
        """Delete the oldest runs of other models until everything in the folder fits the quota.

        Raises:
            OSError: something in the folder cannot be listed or deleted.
        """
        num_deleted = prune_others(self._folder.parent, self._folder, quota_bytes)
        if num_deleted:
            self._log(f"{num_deleted} KV files of other models were deleted to keep the quota ({self._folder.parent})")

    def scan(self) -> list[FoundRun]:
        """List what is there from earlier; files that cannot be trusted are deleted. Once, before the first job."""
        found: list[FoundRun] = []
        now = datetime.now(tz=UTC).timestamp()
        for entry in os.scandir(self._folder):
            path = Path(entry.path)
            if path.suffix == TEMPORARY_SUFFIX:
                path.unlink(missing_ok=True)
            elif path.suffix == SUFFIX:
                run = self._look_at(path, now)
                if run is None:
                    path.unlink(missing_ok=True)
                else:
                    found.append(run)
        return found

    def on_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` from the disk's thread whenever `poll` has something new."""
        self._wake = wake

    def submit(self, job: Job) -> None:
        """Have something done, never waits."""
        with self._condition:
            (self._urgent if isinstance(job, ReadRun) else self._later).append(job)
            self._condition.notify()

    def poll(self) -> list[tuple[KvMoved, memoryview | None]]:
        """Return what was done since the last call; a read that succeeded brings its bytes."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def close(self) -> None:
        """Finish the job at hand and what was submitted, then give the folder free."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._thread.join()
        os.close(self._lock_fd)

    def _look_at(self, path: Path, now: float) -> FoundRun | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            header = read_header(fd, self._model_key)
            if path.name != file_name(header.digest):
                return None
            age_s = max(0.0, now - os.fstat(fd).st_mtime)
            return FoundRun(header.parent, header.digest, header.start, header.tokens, header.payload_bytes, age_s)
        except (BadFileError, OSError):
            return None
        finally:
            os.close(fd)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            result, data = self._do(job)
            if result is not None:
                self._done.append((result, data))
                self._wake()

    def _next(self) -> Job | None:
        with self._condition:
            while not self._urgent and not self._later:
                if self._is_closing:
                    return None
                self._condition.wait()
            return self._urgent.popleft() if self._urgent else self._later.popleft()

    def _do(self, job: Job) -> tuple[KvMoved | None, memoryview | None]:
        if isinstance(job, DeleteRun):
            self._path(job.digest).unlink(missing_ok=True)
            return None, None
        if isinstance(job, ReadRun):
            return self._read(job)
        return self._write(*job), None

    def _write(self, job: WriteRun, data: memoryview) -> KvMoved:
        if self._is_broken:
            return KvMoved(job.run_id, "write", is_ok=False, is_broken=True)
        begin_s = time.monotonic()
        try:
            write_file(self._path(job.digest), self._model_key, job.parent, job.digest, job.start, job.tokens, data)
        except OSError as error:
            self._is_broken = True
            self._log(f"the KV level on disk is off: {error} ({self._folder}); requests go on without it")
            return KvMoved(job.run_id, "write", is_ok=False, is_broken=True)
        return KvMoved(job.run_id, "write", True, len(data), time.monotonic() - begin_s)

    def _read(self, job: ReadRun) -> tuple[KvMoved, memoryview | None]:
        begin_s = time.monotonic()
        path = self._path(job.digest)
        try:
            data = self._read_file(path, job)
            os.utime(path)  # the age that counts after a restart
        except (BadFileError, OSError) as error:
            self._log(f"a KV file is not used: {error} ({path.name})")
            return KvMoved(job.run_id, "read", is_ok=False), None
        return KvMoved(job.run_id, "read", True, len(data), time.monotonic() - begin_s), data

    def _read_file(self, path: Path, job: ReadRun) -> memoryview:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = read_header(fd, self._model_key)
            if (header.digest, header.parent, header.start, header.tokens) != (job.digest, job.parent, job.start, job.tokens):
                raise BadFileError("it holds other tokens")
            if header.payload_bytes > job.num_bytes or header.payload_bytes == 0:
                raise BadFileError("it is larger than what room was made for")
            data = memoryview(mmap.mmap(-1, header.payload_bytes))
            read_payload(fd, header, data)
            return data
        finally:
            os.close(fd)

    def _path(self, digest: bytes) -> Path:
        return self._folder / file_name(digest)


def _do_nothing() -> None:
    """Nobody waits yet."""
