"""Edges of the latency histograms, in seconds.

The base edges are fixed; every configured objective (SLO) is added as an edge, so that the share of requests that met it
can be read from the histogram exactly instead of by interpolation.
"""

from __future__ import annotations

from collections.abc import Iterable

TTFT_EDGES_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120,
)  # fmt: skip
ITL_EDGES_S = (
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5,
)  # fmt: skip
E2E_EDGES_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)
PART_EDGES_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
SCHEDULE_EDGES_S = (0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01)
STEP_TOKEN_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def with_objectives(edges: Iterable[float], objectives_s: Iterable[float]) -> tuple[float, ...]:
    """Return the edges and the objectives as one ascending list without repeats."""
    return tuple(sorted({float(edge) for edge in edges} | {float(value) for value in objectives_s}))
