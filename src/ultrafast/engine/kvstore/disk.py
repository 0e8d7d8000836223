"""The disk level: a folder of run files and one thread that reads, writes and deletes them.

    PATH/<model key>/<digest>.kv      one run each
    PATH/<model key>/.lock            held by the one server that uses the folder

The engine thread submits and polls; it never waits here. Reads go first: a request waits for them, nobody waits for a write.

All files of all models together never take more than the quota: before a write the oldest of other models are deleted. Whatever
goes wrong, each read and write is answered. A file that cannot be read is a miss. What cannot be written, deleted or counted ends
the level: the quota or the disk itself is in doubt.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from ultrafast.core.step import DeleteRun, KvMoved, ReadRun, WriteRun
from ultrafast.engine.kvstore.buffer import run_buffer
from ultrafast.engine.kvstore.others import LOCK_NAME, OtherModels, files_in
from ultrafast.engine.kvstore.run_file import (
    TEMPORARY_SUFFIX,
    BadFileError,
    file_bytes,
    file_name,
    read_header,
    read_payload,
    write_file,
)
from ultrafast.engine.kvstore.store import Job
from ultrafast.kv.run import FoundRun

LOCK_PATIENCE_S = 0.5
"""Another server holds our lock for a moment while it looks at what other models left; one that uses the folder holds it on."""


class DiskStore:
    """See the module.

    Args:
        path: folder of all models; made when it is not there, readable by its owner only (KV says what was in the prompts).
        model_key: runs of other models are never read.
        quota_bytes: of all files in `path`. Those of a model that another server serves at this moment are that server's.
        log: takes a line for people.

    Raises:
        OSError: the folder cannot be used, or another server uses it (BlockingIOError).
    """

    def __init__(self, path: Path, model_key: bytes, quota_bytes: int, log: Callable[[str], None]) -> None:
        self._folder = path / model_key.hex()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._lock_fd)
            self._own_bytes = sum(size for _, size, _ in files_in(self._folder))
        except OSError:
            os.close(self._lock_fd)
            raise
        self._others = OtherModels(path, self._folder)
        self._quota_bytes = quota_bytes
        self._is_short_told = False
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

    def scan(self) -> list[FoundRun]:
        """List what is there from earlier, and bring the folder down to the quota. Once, before the first job.

        Files that cannot be trusted are deleted; one that cannot even be deleted is said, and counts against the quota.

        Raises:
            OSError: the folder cannot be listed, or the quota not be kept; to be closed then.
        """
        found: list[FoundRun] = []
        now = datetime.now(tz=UTC).timestamp()
        for _, _, path in files_in(self._folder):
            run = None if path.suffix == TEMPORARY_SUFFIX else self._look_at(path, now)
            if run is not None:
                found.append(run)
                continue
            try:
                self._delete(path)
            except OSError as error:
                self._log(f"a KV file that is of no use cannot be deleted: {error}")
        self._make_room(0)
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
            try:
                result, data = self._do(job)
            except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the answer must get one
                result, data = self._fail(job, error), None
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
            with contextlib.suppress(OSError) if self._is_broken else contextlib.nullcontext():  # said before
                self._delete(self._path(job.digest))
            return None, None
        if self._is_broken:
            return _broken(job), None
        return self._read(job) if isinstance(job, ReadRun) else (self._write(*job), None)

    def _fail(self, job: Job, error: Exception) -> KvMoved:
        """The level is off from now on, which is said once; what is there stays and is found at the next start."""
        if not self._is_broken:
            self._is_broken = True
            self._log(f"the KV level on disk is off: {error!r} ({self._folder}); requests go on without it")
        return _broken(job)

    def _write(self, job: WriteRun, data: memoryview) -> KvMoved:
        begin_s = time.monotonic()
        path, num_bytes = self._path(job.digest), file_bytes(len(job.tokens), len(data))
        if not self._make_room(num_bytes):
            if not self._is_short_told:
                self._is_short_told = True
                self._log(f"KV is not written: other files take its room, and cannot be deleted ({self._folder})")
            return KvMoved(job.run_id, "write", is_ok=False)
        replaced_bytes = path.stat().st_size if path.exists() else 0
        write_file(path, self._model_key, job.parent, job.digest, job.start, job.tokens, data)
        self._own_bytes += num_bytes - replaced_bytes
        return KvMoved(job.run_id, "write", True, len(data), time.monotonic() - begin_s)

    def _make_room(self, num_bytes: int) -> bool:
        """Whether so many more bytes fit the quota, once the oldest files of other models are gone."""
        left_bytes = self._quota_bytes - self._own_bytes - num_bytes
        num_deleted = self._others.fit(max(0, left_bytes), time.monotonic())
        if num_deleted:
            self._log(f"{num_deleted} KV files of other models were deleted to keep the quota ({self._folder.parent})")
        return self._others.num_bytes <= left_bytes

    def _delete(self, path: Path) -> None:
        """Delete a file of ours; one that is not there is none."""
        with contextlib.suppress(FileNotFoundError):
            num_bytes = path.stat().st_size
            path.unlink()
            self._own_bytes -= num_bytes

    def _read(self, job: ReadRun) -> tuple[KvMoved, memoryview | None]:
        begin_s = time.monotonic()
        path = self._path(job.digest)
        try:
            data = self._read_file(path, job)
        except (BadFileError, OSError) as error:
            self._log(f"a KV file is not used: {error} ({path.name})")
            return KvMoved(job.run_id, "read", is_ok=False), None
        with contextlib.suppress(OSError):  # the age that counts after a restart; what was read is good without it
            os.utime(path)
        return KvMoved(job.run_id, "read", True, len(data), time.monotonic() - begin_s), data

    def _read_file(self, path: Path, job: ReadRun) -> memoryview:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = read_header(fd, self._model_key)
            if (header.digest, header.parent, header.start, header.tokens) != (job.digest, job.parent, job.start, job.tokens):
                raise BadFileError("it holds other tokens")
            if header.payload_bytes > job.num_bytes or header.payload_bytes == 0:
                raise BadFileError("it is larger than what room was made for")
            data = memoryview(run_buffer(header.payload_bytes))
            read_payload(fd, header, data)
            return data
        finally:
            os.close(fd)

    def _path(self, digest: bytes) -> Path:
        return self._folder / file_name(digest)


def _broken(job: Job) -> KvMoved:
    """The answer to a job that the level cannot do any more; a deletion has none but this."""
    if isinstance(job, DeleteRun | ReadRun):
        return KvMoved(job.run_id, "read" if isinstance(job, ReadRun) else "delete", is_ok=False, is_broken=True)
    return KvMoved(job[0].run_id, "write", is_ok=False, is_broken=True)


def _lock(fd: int) -> None:
    """Take a folder's lock. Raises BlockingIOError when somebody keeps it."""
    give_up_s = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                raise
        time.sleep(0.02)


def _do_nothing() -> None:
    """Nobody waits yet."""
