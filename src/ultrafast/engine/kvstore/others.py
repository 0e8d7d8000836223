"""Runs of other models in the same folder: they count against the quota too, and go first.

A folder that another server holds at this moment is left alone; its server keeps its own quota.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ultrafast.engine.kvstore.run_file import SUFFIX
from ultrafast.kv.digest import DIGEST_BYTES

LOCK_NAME = ".lock"


def prune_others(root: Path, own: Path, quota_bytes: int) -> int:
    """Delete files of other models, oldest first, until all files together fit the quota; returns how many were deleted.

    Raises:
        OSError: a folder cannot be listed or a file not be deleted.
    """
    total_bytes = sum(path.stat().st_size for path in own.glob(f"*{SUFFIX}"))
    num_deleted = 0
    with contextlib.ExitStack() as locks:
        others = [folder for folder in _model_folders(root) if folder != own and locks.enter_context(_locked(folder))]
        files = [
            (stat.st_mtime, stat.st_size, path)
            for folder in others
            for path in folder.glob(f"*{SUFFIX}")
            for stat in [path.stat()]
        ]
        total_bytes += sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total_bytes <= quota_bytes:
                break
            path.unlink(missing_ok=True)
            total_bytes -= size
            num_deleted += 1
    return num_deleted


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
