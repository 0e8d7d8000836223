"""Facts of an engine that is not there, for whoever only has to know some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ultrafast.engine.assembly import fake_facts
from ultrafast.engine.options import EngineFacts, EngineOptions


def engine_facts(**changes: Any) -> EngineFacts:
    """Plausible values that fit each other, with the ones that a test is about changed."""
    return replace(fake_facts(EngineOptions("none", kv_capacity_tokens=4096, max_num_running=4)), **changes)
