"""The check that stands between a libllama of another layout and corrupted memory, on the real library."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ultrafast.core.errors import ConfigError
from ultrafast.engine.llama import abi

pytestmark = pytest.mark.integration


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the pinned library that the environment points to. It stays loaded: libllama cannot be unloaded."""
    path = tmp_path / "libllama-copy.so"
    shutil.copyfile(abi.load().path, path)
    monkeypatch.setenv(abi.OVERRIDE_VARIABLE, str(path))
    abi.load.cache_clear()
    yield path
    monkeypatch.undo()
    abi.load.cache_clear()
    abi.load()  # the log goes to the library that the other tests use


def test_the_variable_chooses_the_library_and_its_build_is_named(copied: Path) -> None:
    library = abi.load()
    assert library.path == copied
    assert library.build.startswith("custom ")
    assert library.build != abi.PINNED_BUILD


def test_what_is_no_library_is_an_error_that_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "libllama.so"
    path.write_bytes(b"not a library")
    with pytest.raises(ConfigError, match="cannot open libllama") as caught:
        abi.load(str(path))
    assert caught.value.code == "libllama_missing"
    assert abi.OVERRIDE_VARIABLE in str(caught.value.hint)


@pytest.mark.parametrize(
    ("defaults", "field", "expected"), [("_CONTEXT_DEFAULTS", "n_batch", 2049), ("_MODEL_DEFAULTS", "split_mode", 7)]
)
def test_a_default_that_differs_is_named(
    defaults: str, field: str, expected: int, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(getattr(abi, defaults), field, expected)
    with pytest.raises(ConfigError, match=rf"does not match the C API.*\.{field} defaults to \d+, expected {expected}") as caught:
        abi.load()
    assert caught.value.code == "libllama_abi"
    assert abi.PINNED_BUILD in str(caught.value.hint)


def test_a_layout_that_has_moved_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one struct through the declarations of another is what a moved field does to us."""
    c = abi.load().c
    real = abi.ffi

    class Swapped:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def addressof(self, library: Any, function: str) -> Any:
            return real.addressof(library, {"llama_context_default_params": "llama_model_default_params"}.get(function, function))

    monkeypatch.setattr(abi, "ffi", Swapped())
    with pytest.raises(ConfigError, match=r"llama_context_params\.\w+ defaults to"):
        abi.check_abi(c, Path("other.so"))


def test_a_library_without_the_functions_is_named() -> None:
    libc = abi.ffi.dlopen(None)
    with pytest.raises(ConfigError, match="it has no llama_context_default_params"):
        abi.check_abi(libc, Path("libc.so"))
