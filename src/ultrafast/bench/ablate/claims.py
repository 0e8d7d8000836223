"""Published claims, held against what was measured here. Pure."""

from __future__ import annotations

import msgspec

from ultrafast.bench.ablate.conversations import CLIENTS, TURNS
from ultrafast.bench.ablate.pipelines import NAIVE, TOGETHER
from ultrafast.bench.ablate.records import Ablation
from ultrafast.bench.ablate.savings import Saved, saved_quantile


class Claim(msgspec.Struct, frozen=True):
    """A claim and its test.

    Attributes:
        published: the share that is said to be saved.
        text: what is said, and of what.
        tested: what was measured here.
        condition: how the test differs from the claim; empty: it does not.
    """

    published: float
    text: str
    tested: str
    measured: Saved
    condition: str = ""


def claims(ablation: Ablation) -> list[Claim]:
    """Those that this ablation can say something about."""
    found = []
    workloads = {workload.name: workload for workload in ablation.spec.workloads}
    has_all = any(pipeline.name == TOGETHER for pipeline in ablation.spec.pipelines)
    if has_all and (turns := workloads.get(TURNS)) and turns.num_turns > 1:
        saved = saved_quantile(ablation.runs_of(NAIVE, TURNS), ablation.runs_of(TOGETHER, TURNS), "e2e", 0.5, first_turn=1)
        tested = "P50 end to end of all turns after the first"
        found.append(Claim(0.975, "end to end on repeated multi-turn requests", tested, saved))
    if has_all and (clients := workloads.get(CLIENTS)):
        saved = saved_quantile(ablation.runs_of(NAIVE, CLIENTS), ablation.runs_of(TOGETHER, CLIENTS), "ttft", 0.95)
        condition = "" if clients.num_clients == 100 else f"with {clients.num_clients} clients instead of 100"
        found.append(Claim(0.77, "P95 TTFT at 100 clients, no weight changed", "P95 TTFT", saved, condition))
    return found
