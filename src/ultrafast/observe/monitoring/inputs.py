"""What rules and dashboard are made from."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.utils import floatToGoString

from ultrafast.core.tiers import ServiceTier

DEFAULT_JOB = "ultrafast"
DEFAULT_SLO_PERCENT = 99.0
DEFAULT_RUNBOOK = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class TierObjectives:
    """The objectives of one tier, seconds. Each is an edge of the server's histograms, see `observe.buckets`."""

    tier: ServiceTier
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class MonitoringInputs:
    """Everything that differs between two installations.

    Attributes:
        objectives: one entry per tier.
        max_num_running: sequences that may run at once; as many waiting ones are a queue of one full turn.
        stall_after_s: without a finished step for so long, and with calls in flight, the engine counts as stalled.
        job: value of the label `job` that Prometheus gives the server.
        slo_percent: share of calls that must meet an objective, 95 <= value < 100; the rest is the error budget.
        runbook: path or URL of the runbook, without `#`.
    """

    objectives: tuple[TierObjectives, ...]
    max_num_running: int
    stall_after_s: float
    job: str = DEFAULT_JOB
    slo_percent: float = DEFAULT_SLO_PERCENT
    runbook: str = DEFAULT_RUNBOOK

    @property
    def budget(self) -> float:
        """Share of calls that may miss an objective."""
        return (100.0 - self.slo_percent) / 100.0


def edge(seconds: float) -> str:
    """The value of the label `le` that the server writes for a bucket that ends here."""
    return str(floatToGoString(seconds))  # type: ignore[no-untyped-call]
