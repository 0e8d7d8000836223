"""What an ablation was asked, and what it saw: raw requests by pipeline, workload and round."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ultrafast.bench.ablate.conversations import Workload
from ultrafast.bench.ablate.pipelines import Pipeline
from ultrafast.bench.records import LoopLag, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationSpec:
    """What to measure.

    Attributes:
        pipelines: the naive one first.
        num_rounds: runs of each pipeline on each workload; in a round every pipeline has one.
        config_file: of the servers; None: none.
        settings: of the servers, by dotted name; a pipeline's own win over them.
        headers: sent with each request; holds the API key, if there is one.
        is_restarting: start a server for each run and stop it after; else each stays up until the end.
        max_duration_s: no new round begins later than so many seconds after the start. None: all rounds.
    """

    pipelines: list[Pipeline]
    workloads: list[Workload]
    num_rounds: int
    seed: int
    config_file: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    is_restarting: bool = False
    timeout_s: float = 600.0
    max_duration_s: float | None = None

    @property
    def num_requests(self) -> int:
        """Measured ones."""
        return len(self.pipelines) * self.num_rounds * sum(workload.num_requests for workload in self.workloads)

    @property
    def num_servers(self) -> int:
        """Different configurations of the server: streaming needs none of its own."""
        return len({str(pipeline.settings) for pipeline in self.pipelines})


@dataclass(frozen=True, slots=True)
class AblationRun:
    """One pipeline on one workload in one round."""

    pipeline: str
    workload: str
    round_number: int
    requests: list[RequestRecord]
    loop_lag: LoopLag


@dataclass(frozen=True, slots=True)
class Ablation:
    """The outcome of an ablation.

    Attributes:
        num_rounds: rounds that were completed.
        environment: fingerprint of the machine and the server, as flat text.
        flags: what limits what the figures prove; empty is best.
        duration_s: of everything, starts of servers included.
    """

    spec: AblationSpec
    runs: list[AblationRun]
    num_rounds: int
    started_at: str
    environment: dict[str, str]
    duration_s: float
    flags: list[str] = field(default_factory=list)

    def runs_of(self, pipeline: str, workload: str) -> list[AblationRun]:
        """In the order of the rounds."""
        found = [run for run in self.runs if run.pipeline == pipeline and run.workload == workload]
        return sorted(found, key=lambda run: run.round_number)
