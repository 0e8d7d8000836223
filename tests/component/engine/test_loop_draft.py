"""The engine loop with a draft model: it asks before the step, and the step checks what was said."""

from __future__ import annotations

import pytest

from ultrafast.core.clock import ManualClock
from ultrafast.core.request import Request, SamplingParams
from ultrafast.engine.fake import FakeCost, expected_tokens
from ultrafast.engine.fake_draft import DraftingFakeExecutor, FakeDraftModel
from ultrafast.engine.loop import EngineLoop
from ultrafast.engine.messages import Shutdown, StepReport, Submit
from ultrafast.sched.limits import DraftLimits, SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

DRAFT = DraftLimits(kv_capacity_tokens=512, num_sequences=3, max_request_tokens=512, max_pass_tokens=64)
REQUEST = Request("r", tuple(range(1, 21)), SamplingParams(max_tokens=100, seed=1, ignore_eos=True))


@pytest.mark.parametrize("breaks", [False, True])
def test_guesses_of_the_draft_model_are_asked_for_and_checked(breaks: bool) -> None:
    clock = ManualClock()
    cost = FakeCost(fixed_s=0.01, output_s=0.001, draft_s=0.0005)
    executor = DraftingFakeExecutor(FakeDraftModel(DRAFT, wrong_percent=10), capacity_tokens=1024, clock=clock, cost=cost)
    scheduler = Scheduler(SchedulerLimits(1024, 1024, 256, 0.1, draft=DRAFT))
    tokens: list[int] = []
    drafted: list[int] = []

    def take(report: StepReport) -> None:
        tokens.extend(event.token for event in report.tokens)
        assert report.stats is not None
        drafted.append(report.stats.num_model_drafted_tokens)
        executor.is_draft_broken = breaks and sum(drafted) > 20
        if report.finished:
            loop.post(Shutdown())

    loop = EngineLoop(scheduler, executor, clock, take)
    loop.post(Submit(REQUEST))
    loop.run()
    assert tokens == expected_tokens(REQUEST)
    assert 20 < sum(drafted) <= (40 if breaks else 400)
    assert len(drafted) < (95 if breaks else 50)
