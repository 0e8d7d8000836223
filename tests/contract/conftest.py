"""Executors under contract: the suite runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.executors import CAPACITY_TOKENS, MAX_STEP_TOKENS, NUM_SEQUENCES

from ultrafast.engine.executor import Executor
from ultrafast.engine.fake import FakeExecutor


@pytest.fixture(params=["fake"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An empty executor with the limits of `executors.py`; one more implementation = one more param here."""
    made = FakeExecutor(capacity_tokens=CAPACITY_TOKENS, num_sequences=NUM_SEQUENCES, max_step_tokens=MAX_STEP_TOKENS)
    yield made
    made.close()
