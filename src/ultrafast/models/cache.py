"""The folder where pulled models live, and the lock that keeps two pulls apart.

Layout::

    CACHE/models/FILE.gguf               complete, verified files only (renamed into place)
    CACHE/models/hub/OWNER/REPO/...      files from a hub
    CACHE/models/.pull-NAME.lock         held while NAME is being pulled; empty, left behind
    CACHE/models/.pull-NAME/             what an unfinished pull has so far; removed by the next one
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import platformdirs

CACHE_DIR_VARIABLE: Final = "ULTRAFAST_CACHE_DIR"
_LOCK_POLL_S: Final = 0.2


def cache_dir() -> Path:
    """The user's cache folder, or what ``ULTRAFAST_CACHE_DIR`` names. It may not exist yet."""
    override = os.environ.get(CACHE_DIR_VARIABLE, "").strip()
    if override:
        return Path(override).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("ultrafast", appauthor=False))


def models_dir() -> Path:
    """Where model files lie. It may not exist yet."""
    return cache_dir() / "models"


@contextlib.contextmanager
def pull_folder(name: str, on_wait: Callable[[], None]) -> Iterator[Path]:
    """An empty folder for pulling ``name``, for one process at a time, on the same disk as the models.

    Waits while another process holds it and calls ``on_wait`` several times a second meanwhile; raise there to give
    up. The system releases the lock of a killed process, and the next pull removes what that one left.

    Raises:
        OSError: the cache folder cannot be written.
    """
    folder = models_dir() / f".pull-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        while not _try_lock(lock.fileno()):
            on_wait()
            time.sleep(_LOCK_POLL_S)
        _remove(folder)
        folder.mkdir()
        try:
            yield folder
        finally:
            _remove(folder)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
