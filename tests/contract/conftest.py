"""Executors under contract: the suite runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.executors import CAPACITY_TOKENS, COUNT, MAX_STEP_TOKENS, NUM_SEQUENCES, Driver
from tests.contract.executors import request as make_request

from ultrafast.engine.executor import Executor
from ultrafast.engine.fake import FakeExecutor
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.options import EngineOptions


def _make_fake() -> Executor:
    return FakeExecutor(capacity_tokens=CAPACITY_TOKENS, num_sequences=NUM_SEQUENCES, max_step_tokens=MAX_STEP_TOKENS)


def _make_llama(model_path: Path) -> Executor:
    options = EngineOptions(
        str(model_path),
        kv_capacity_tokens=CAPACITY_TOKENS,
        max_step_tokens=MAX_STEP_TOKENS,
        num_threads=1,  # other tests may keep the cores busy, and compute threads spin
        max_num_running=NUM_SEQUENCES // 2,
        max_num_cached=NUM_SEQUENCES // 2,
    )
    return LlamaExecutor.load(options, lambda *_: None)


@pytest.fixture(scope="module", params=["fake", pytest.param("llama", marks=pytest.mark.integration)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An executor with the limits of `executors.py`, shared by the suite; whoever uses it leaves it empty (see `driver`)."""
    made = _make_fake() if request.param == "fake" else _make_llama(request.getfixturevalue("model_path"))
    yield made
    made.close()


@pytest.fixture
def driver(executor: Executor) -> Iterator[Driver]:
    used = Driver(executor)
    yield used
    used.clear()


@pytest.fixture(scope="module")
def alone(executor: Executor) -> list[int]:
    """What the prompt gives when it has the engine to itself."""
    driver, one = Driver(executor), make_request("alone")
    driver.begin(one)
    output = driver.generate(one, 7, COUNT)
    driver.clear()
    return output
