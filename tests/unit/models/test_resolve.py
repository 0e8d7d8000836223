from pathlib import Path

import pytest
from tests.unit.models.gguf_builder import build

from ultrafast.core.errors import ModelFileError
from ultrafast.models import registry
from ultrafast.models.cache import cache_dir, models_dir
from ultrafast.models.resolve import list_models, locate_model, resolve_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ULTRAFAST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_cache_folder_follows_the_variable(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == cache
    monkeypatch.setenv("ULTRAFAST_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir().name == "ultrafast"


def test_a_path_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "my-model.gguf", build())
    monkeypatch.chdir(tmp_path)
    for text in (str(path), "my-model.gguf"):
        resolved = resolve_model(text)
        assert (resolved.model_id, resolved.path) == ("my-model", path)
        assert resolved.facts.architecture == "llama"


def test_the_default_is_the_bundled_model_and_must_be_pulled_first() -> None:
    with pytest.raises(ModelFileError, match="not on this machine") as caught:
        resolve_model()
    assert caught.value.hint == f"Run: ultrafast models pull {registry.DEFAULT_MODEL}"


def test_a_present_hub_model_is_found_and_listed() -> None:
    name = "owner/repo:sub/tiny.gguf"
    with pytest.raises(ModelFileError, match="not on this machine"):
        locate_model(name)
    path = put(models_dir() / "hub/owner/repo/sub/tiny.gguf", build())
    assert resolve_model(name).model_id == "tiny"
    assert [(model.name, model.is_present, model.path) for model in list_models()] == [
        (registry.DEFAULT_MODEL, False, models_dir() / registry.SMOLLM2_135M_INSTRUCT.file_name),
        (name, True, path),
    ]


def test_unknown_names_get_a_suggestion_and_paths_do_not() -> None:
    with pytest.raises(ModelFileError, match="no model named 'smolm2'") as caught:
        resolve_model("smolm2")
    assert "Did you mean smollm2?" in str(caught.value.hint)
    for text in ("absent.gguf", "folder/absent"):
        with pytest.raises(ModelFileError, match="no such file"):
            resolve_model(text)


def test_a_bad_file_is_refused_on_resolving(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        resolve_model(str(put(tmp_path / "bad.gguf", b"nonsense")))
