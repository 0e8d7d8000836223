"""Models from a hub, named ``OWNER/REPO:FILE.gguf``; needs the optional extra ``hub``."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ultrafast.models.cache import models_dir
from ultrafast.models.download import DownloadFailedError, ModelPullError, ProgressCallback, run_download

HUB_FOLDER: Final = "hub"
_REFERENCE: Final = re.compile(r"(?P<owner>[\w-][\w.-]*)/(?P<repo>[\w-][\w.-]*):(?P<file>[\w-][\w./-]*\.gguf)", re.ASCII)
_DOWNLOAD: Final = (
    "import sys; from huggingface_hub import hf_hub_download as get; "
    "get(repo_id=sys.argv[1], filename=sys.argv[2], local_dir=sys.argv[3])"
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """One GGUF file in a hub repository."""

    owner: str
    repo: str
    file: str

    @property
    def path(self) -> Path:
        """Where the file lies once pulled."""
        return models_dir() / HUB_FOLDER / self.owner / self.repo / self.file

    def __str__(self) -> str:
        return f"{self.owner}/{self.repo}:{self.file}"


def parse_hub_name(name: str) -> HubModel | None:
    """The hub model that ``name`` means, or None if it has another form. Never leaves the cache folder."""
    match = _REFERENCE.fullmatch(name)
    if match is None or ".." in name:
        return None
    return HubModel(match["owner"], match["repo"], match["file"])


def pull_from_hub(model: HubModel, folder: Path, progress: ProgressCallback) -> Path:
    """Downloads into ``folder`` and returns the file there; the caller checks it and moves it.

    Raises:
        ModelPullError: the extra is not installed, or the hub refused.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelPullError(
            f"Pulling {model} needs the optional extra 'hub'.",
            hint="Install it: .venv/bin/pip install huggingface_hub. Or download the file and serve it with --model PATH.gguf.",
        )
    command = [sys.executable, "-c", _DOWNLOAD, f"{model.owner}/{model.repo}", model.file, str(folder)]
    try:
        run_download(command, folder, env={"HF_HUB_DISABLE_PROGRESS_BARS": "1"}, total_bytes=None, progress=progress)
    except DownloadFailedError as error:
        raise ModelPullError(
            f"Pulling {model} failed: {error.last_error()}",
            hint="Check the name, the network, and whether the model needs you to accept terms and set HF_TOKEN.",
        ) from error
    return folder / model.file
