"""Runs of other models in the same folder: they count against the quota too, and go first.

A folder that another server holds at this moment is left alone; its server keeps its own quota.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ultrafast.engine.kvstore.run_file import SUFFIX, TEMPORARY_SUFFIX
from ultrafast.kv.digest import DIGEST_BYTES

LOCK_NAME = ".lock"
LOOK_AGAIN_S = 60.0
"""What is there is listed again after so long: another server may have come and gone."""


class OtherModels:
    """What other models left. One thread at a time.

    Args:
        root: folder of all models. own: the folder in it that is not another's.

    Attributes:
        num_bytes: of their files that no server holds, when they were listed last.
    """

    def __init__(self, root: Path, own: Path) -> None:
        self._root = root
        self._own = own
        self._files: list[tuple[float, int, Path]] = []  # newest first
        self._listed_s: float | None = None
        self.num_bytes = 0

    def fit(self, max_bytes: int, now: float) -> int:
        """Delete the oldest until what is left takes at most `max_bytes`; returns how many files that were.

        More is left only when another server has taken them over meanwhile.

        Raises:
            OSError: a folder cannot be listed, or a file not be deleted: the quota cannot be kept.
        """
        if self._listed_s is None or now - self._listed_s > LOOK_AGAIN_S:
            self._list()
            self._listed_s = now
        num_deleted = 0
        while self.num_bytes > max_bytes and self._files:
            _, size, path = self._files.pop()
            with _locked(path.parent) as is_ours:
                if is_ours:
                    path.unlink(missing_ok=True)
                    num_deleted += 1
            self.num_bytes -= size  # gone, or its server's
        return num_deleted

    def _list(self) -> None:
        self._files.clear()
        for folder in _model_folders(self._root):
            if folder == self._own:
                continue
            with _locked(folder) as is_ours:
                if is_ours:
                    self._files += files_in(folder)
        self._files.sort(reverse=True)
        self.num_bytes = sum(size for _, size, _ in self._files)


def files_in(folder: Path) -> list[tuple[float, int, Path]]:
    """Age (modification time), size and path of every file of a run, whole or half-written.

    Raises:
        OSError: it cannot be listed.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if Path(entry.name).suffix in (SUFFIX, TEMPORARY_SUFFIX):
                with contextlib.suppress(FileNotFoundError):  # gone between the list and the look
                    stat = entry.stat(follow_symlinks=False)
                    found.append((stat.st_mtime, stat.st_size, Path(entry.path)))
    return found


def _model_folders(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if len(path.name) == 2 * DIGEST_BYTES and (path / LOCK_NAME).exists()]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock if nobody has it."""
    fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except BlockingIOError:
            is_ours = False
        yield is_ours
    finally:
        os.close(fd)
