"""From what a user typed to a checked model file: the only place that decides which file is meant."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ultrafast.core.errors import ModelFileError
from ultrafast.models.cache import models_dir
from ultrafast.models.gguf import GgufFacts, read_facts
from ultrafast.models.hub import HUB_FOLDER, parse_hub_name
from ultrafast.models.pull import is_packaged_present, packaged_path, suggest_names
from ultrafast.models.registry import DEFAULT_MODEL, MODELS, find_model


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A local, checked model file. ``model_id`` is what the API calls it by default."""

    model_id: str
    path: Path
    facts: GgufFacts


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A row of ``ultrafast models list``. Sizes in bytes; ``license`` is None where we do not know it."""

    name: str
    aliases: tuple[str, ...]
    title: str
    license: str | None
    size_bytes: int
    path: Path
    is_present: bool


def resolve_model(name_or_path: str | None = None) -> ResolvedModel:
    """Finds and checks the model file; downloads nothing.

    Tried in this order: a registry name or alias; an existing file; a hub name (``OWNER/REPO:FILE.gguf``).

    Args:
        name_or_path: None means the bundled model.

    Raises:
        ModelFileError: unknown name, not pulled yet, or a file that cannot be served; always with a hint.
    """
    text = name_or_path or DEFAULT_MODEL
    model_id, path = _locate(text)
    return ResolvedModel(model_id, path, read_facts(path))


def locate_model(name_or_path: str | None = None) -> Path:
    """The path that `resolve_model` would check, without reading the file.

    Raises:
        ModelFileError: unknown name, or not pulled yet.
    """
    return _locate(name_or_path or DEFAULT_MODEL)[1]


def list_models() -> tuple[ListedModel, ...]:
    """Every registry model, then the hub models that were pulled."""
    hub = models_dir() / HUB_FOLDER
    pulled = tuple(_listed_hub(path, hub) for path in sorted(hub.glob("*/*/**/*.gguf")))
    packaged = tuple(
        ListedModel(
            name=model.name,
            aliases=model.aliases,
            title=model.title,
            license=model.license,
            size_bytes=model.size_bytes,
            path=packaged_path(model),
            is_present=is_packaged_present(model),
        )
        for model in MODELS
    )
    return packaged + pulled


def _listed_hub(path: Path, hub: Path) -> ListedModel:
    owner, repo, *rest = path.relative_to(hub).parts
    name = f"{owner}/{repo}:{'/'.join(rest)}"
    return ListedModel(name, (), "from a hub", None, path.stat().st_size, path, is_present=True)


def _locate(text: str) -> tuple[str, Path]:
    packaged = find_model(text)
    if packaged is not None:
        if not is_packaged_present(packaged):
            raise _not_pulled(packaged.name)
        return packaged.name, packaged_path(packaged)
    path = Path(text).expanduser()
    if path.exists():
        return path.stem, path.absolute()
    hub_model = parse_hub_name(text)
    if hub_model is not None:
        if not hub_model.path.is_file():
            raise _not_pulled(text)
        return hub_model.path.stem, hub_model.path
    if os.sep in text or text.endswith(".gguf"):
        raise ModelFileError(
            f"{path}: there is no such file.", hint="Check the path; `ultrafast models list` shows named models."
        )
    raise ModelFileError(f"There is no model named {text!r}.", code="unknown_model", hint=suggest_names(text))


def _not_pulled(name: str) -> ModelFileError:
    return ModelFileError(
        f"The model {name} is not on this machine yet.", code="model_not_pulled", hint=f"Run: ultrafast models pull {name}"
    )
