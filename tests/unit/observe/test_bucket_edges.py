"""Every objective of the settings is an edge of the histogram that its attainment is read from."""

from __future__ import annotations

import pytest

from ultrafast.config.settings import Settings
from ultrafast.wiring import build_metrics

OBJECTIVES = {"ttft_ms": 137.5, "tpot_ms": 11.3, "e2e_ms": 4321, "jitter_ms": 7.7}


@pytest.mark.parametrize("tier", ["ultrafast", "priority", "default", "flex"])
@pytest.mark.parametrize(
    ("name", "edge_ms"),
    [("ttft", 137.5), ("queue", 137.5), ("tpot", 11.3), ("itl", 11.3), ("jitter", 11.3), ("jitter", 7.7), ("e2e", 4321)],
)
def test_objectives_of_a_tier_are_edges(tier: str, name: str, edge_ms: float) -> None:
    metrics = build_metrics(Settings(tiers={tier: OBJECTIVES}))  # type: ignore[arg-type]
    getattr(metrics, name).labels(tier).observe(edge_ms / 1000)
    labels = {"tier": tier, "le": str(edge_ms / 1000)}
    assert metrics.registry.get_sample_value(f"ultrafast_{name}_seconds_bucket", labels) == 1


def test_what_is_no_objective_is_no_edge() -> None:
    metrics = build_metrics(Settings())
    for name in ("e2e", "jitter"):
        getattr(metrics, name).labels("flex").observe(1)
        assert metrics.registry.get_sample_value(f"ultrafast_{name}_seconds_bucket", {"tier": "flex", "le": "0.0"}) is None
