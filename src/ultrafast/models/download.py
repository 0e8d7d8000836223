"""Runs a downloader as a child process and reports how far it is.

Owns the words of progress and of failed pulls. The bytes so far are what has grown in the child's folder, so it works
with every version of every downloader, and a cancelled pull leaves no child behind.
"""

from __future__ import annotations

import enum
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ultrafast.core.errors import UltrafastError

_POLL_S: Final = 0.1
_STOP_S: Final = 5.0


class ModelPullError(UltrafastError):
    """A model could not be fetched: no network, no space, no downloader, or not the expected bytes."""

    code = "model_pull_failed"


class PullPhase(enum.StrEnum):
    """What a pull is doing."""

    WAITING = "waiting"
    """another process pulls the same model"""
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    """unpacking and hashing"""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PullProgress:
    """A moment of a pull; ``total_bytes`` is None while unknown, ``done_bytes`` never exceeds it."""

    phase: PullPhase
    done_bytes: int
    total_bytes: int | None


ProgressCallback = Callable[[PullProgress], None]
"""Called on the pulling thread, several times a second. Raising from it cancels the pull."""


def run_download(
    command: Sequence[str], folder: Path, *, env: Mapping[str, str], total_bytes: int | None, progress: ProgressCallback
) -> None:
    """Runs ``command``, which writes below ``folder``, to its end.

    Raises:
        DownloadFailedError: it ended with an error; carries what it wrote.
        OSError: it could not be started, or the folder is full.
    """
    log_path = folder / "download.log"
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **env}
        )
        try:
            while (status := _wait(child)) is None:
                progress(PullProgress(PullPhase.DOWNLOADING, _capped(folder_bytes(folder), total_bytes), total_bytes))
        finally:
            _stop(child)
    if status != 0:
        raise DownloadFailedError(status, log_path.read_text(encoding="utf-8", errors="replace"))


class DownloadFailedError(Exception):
    """The child's exit status and output, for the caller to turn into a `ModelPullError`."""

    def __init__(self, status: int, output: str) -> None:
        super().__init__(f"exit status {status}")
        self.status = status
        self.output = output

    def last_error(self) -> str:
        """The line that says most: the last that mentions an error, else the last one."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [f"exit status {self.status} without a message"])[-1]


def folder_bytes(folder: Path) -> int:
    """Bytes in all files below ``folder``; files that vanish meanwhile count as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue  # the downloader renamed or removed it between listing and asking
    return total


def _capped(done_bytes: int, total_bytes: int | None) -> int:
    return done_bytes if total_bytes is None else min(done_bytes, total_bytes)


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(timeout=_POLL_S)
    except subprocess.TimeoutExpired:
        return None


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
