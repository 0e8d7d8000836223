"""Engine events to samples, and the logs."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from typing import Any, Literal

import pytest

from ultrafast.core.events import KvLevelsChanged, RequestFinished, RequestPreempted, StepFinished
from ultrafast.core.request import FinishReason
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.messages import StepReport
from ultrafast.observe.logs import log_fields, set_up_logging
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import FOLD_NOTES, FOLD_STEPS, Recorder

FINISHED = RequestFinished(
    "r",
    FinishReason.STOP,
    ServiceTier.FLEX,
    100,
    60,
    45,
    5,
    arrival_s=1.0,
    scheduled_s=1.25,
    first_token_s=1.75,
    finished_s=3.0,
    num_host_tokens=30,
    num_disk_tokens=10,
)
STEP = StepFinished(
    1,
    2.0,
    0.02,
    0.0001,
    36,
    32,
    4,
    1,
    5,
    2,
    65,
    31,
    32 * 10 - 96,
    num_drafted_tokens=8,
    num_accepted_tokens=5,
    speculation_gain=1.5,
    num_model_drafted_tokens=6,
    num_model_accepted_tokens=4,
    draft_model_gain=1.25,
)


def recorded(*reports: StepReport) -> Any:
    metrics = Metrics()
    recorder = Recorder(metrics)
    for report in reports:
        recorder.on_report(report)
    return lambda name, **labels: metrics.registry.get_sample_value(f"ultrafast_{name}", labels)


def test_finished_requests() -> None:
    value = recorded(StepReport(finished=[FINISHED, replace(FINISHED, reason=FinishReason.ABORT)]))
    assert value("queue_seconds_sum", tier="flex") == pytest.approx(0.5)
    assert value("prefill_seconds_sum", tier="flex") == pytest.approx(1.0)
    assert value("prompt_tokens_total", tier="flex") == 200
    assert value("prefix_cache_queried_tokens_total") == 200
    assert value("prefix_cache_hit_tokens_total", level="device") == 40
    assert value("prefix_cache_hit_tokens_total", level="host") == 60
    assert value("prefix_cache_hit_tokens_total", level="disk") == 20
    assert value("aborts_total", tier="flex") == 1


def test_what_the_server_computes_for_itself_is_no_traffic() -> None:
    value = recorded(StepReport(finished=[replace(FINISHED, is_internal=True, reason=FinishReason.ABORT)]))
    assert value("ahead_tokens_total") == 45
    assert value("prompt_tokens_total", tier="flex") == 0
    assert value("prefix_cache_queried_tokens_total") == 0
    assert value("queue_seconds_count", tier="flex") == 0
    assert value("aborts_total", tier="flex") == 0


def test_notes_are_bounded_and_none_is_lost_when_nobody_reads() -> None:
    metrics = Metrics()
    recorder = Recorder(metrics)
    for _ in range(2 * FOLD_NOTES + 3):
        recorder.on_response("/metrics", "2xx")
        recorder.on_report(StepReport(finished=[FINISHED]))
        assert len(recorder._notes) <= FOLD_NOTES
    value = metrics.registry.get_sample_value
    assert value("ultrafast_http_responses_total", {"route": "/metrics", "status_class": "2xx"}) == 2 * FOLD_NOTES + 3
    assert value("ultrafast_prompt_tokens_total", {"tier": "flex"}) == 100 * (2 * FOLD_NOTES + 3)
    assert not recorder._notes


def test_tokens_that_were_computed_again() -> None:
    value = recorded(StepReport(finished=[replace(FINISHED, num_preemptions=1, num_recomputed_tokens=70), FINISHED]))
    assert value("recomputed_tokens_total", tier="flex") == 70
    assert value("recomputed_tokens_total", tier="default") == 0


def test_a_request_that_was_never_scheduled_has_no_times() -> None:
    value = recorded(StepReport(finished=[replace(FINISHED, scheduled_s=None, first_token_s=None)]))
    assert value("queue_seconds_count", tier="flex") == 0
    assert value("prefix_cache_queried_tokens_total") == 0


def test_steps_and_blocks() -> None:
    value = recorded(StepReport(stats=STEP, preempted=[RequestPreempted("r", 1.0, ServiceTier.DEFAULT)]))
    assert value("step_seconds_sum", kind="mixed") == pytest.approx(0.02)
    assert value("step_tokens_sum", kind="prefill") == 32
    assert value("step_tokens_sum", kind="decode") == 4
    assert value("requests_running") == 5
    assert value("requests_waiting") == 2
    assert value("computed_tokens_total") == 36
    names = ("spec_drafted_tokens_total", "spec_accepted_tokens_total", "spec_gain")
    assert [value(name, source="ngram") for name in names] == [2, 1, 1.5]
    assert [value(name, source="draft") for name in names] == [6, 4, 1.25]
    blocks = {state: value("kv_blocks", level="device", state=state) for state in ("free", "running", "cached")}
    assert blocks == {"running": 3, "cached": 1, "free": 6}
    assert value("kv_capacity_blocks", level="device") == 10
    assert value("preemptions_total", tier="default") == 1


@pytest.mark.parametrize(("num_prefill_tokens", "num_decode", "kind"), [(0, 4, "decode"), (32, 0, "prefill"), (32, 4, "mixed")])
def test_kinds_of_steps(num_prefill_tokens: int, num_decode: int, kind: str) -> None:
    step = STEP._replace(num_prefill_tokens=num_prefill_tokens, num_decode_sequences=num_decode)
    assert recorded(StepReport(stats=step))("step_seconds_count", kind=kind) == 1


def test_a_side_chunk_is_no_step_among_the_others() -> None:
    value = recorded(StepReport(stats=STEP._replace(num_decode_sequences=0, is_side=True)))
    assert value("step_seconds_count", kind="side") == 1
    assert value("step_seconds_count", kind="prefill") == 0


def test_steps_are_counted_once_and_do_not_pile_up() -> None:
    metrics = Metrics()
    recorder, value = Recorder(metrics), metrics.registry.get_sample_value
    for number in range(FOLD_STEPS + 3):
        recorder.on_report(StepReport(stats=STEP._replace(num_waiting=number)))
    assert len(recorder._steps) == 3
    for _ in range(2):
        assert value("ultrafast_schedule_seconds_count") == FOLD_STEPS + 3
        assert value("ultrafast_requests_waiting") == FOLD_STEPS + 2


def test_blocks_always_sum_to_the_capacity() -> None:
    metrics = Metrics()
    recorder, value = Recorder(metrics), metrics.registry.get_sample_value
    for running in (0, 1, 31, 32, 33, 80):
        for cached in (0, 1, 31, 32, 33, 80):
            free = 160 - running - cached
            recorder._set_kv(running, cached, free)
            states = ("free", "running", "cached")
            blocks = [value("ultrafast_kv_blocks", {"level": "device", "state": state}) or 0 for state in states]
            assert sum(blocks) == value("ultrafast_kv_capacity_blocks", {"level": "device"}) == 5
            assert min(blocks) >= 0


LEVELS = KvLevelsChanged(1000, 4000, 64, 500, 900, 33, True, 5, 4, 3, 2, 1, 0)


def test_levels_of_kv() -> None:
    value = recorded(StepReport(levels=LEVELS), StepReport(levels=replace(LEVELS, num_saved=7, host_bytes=2000)))
    assert (value("kv_bytes", level="host"), value("kv_bytes", level="disk")) == (2000, 500)
    assert value("kv_blocks", level="disk", state="cached") == 2
    assert value("kv_capacity_bytes", level="disk") == 900
    assert [value("kv_moved_runs_total", way=way) for way in ("save", "load", "write", "read")] == [7, 4, 3, 2]
    assert value("kv_evicted_runs_total", level="host") == 1


def test_a_disk_that_is_off_has_no_capacity_and_a_new_engine_counts_from_zero() -> None:
    metrics = Metrics()
    recorder, value = Recorder(metrics), metrics.registry.get_sample_value
    recorder.on_report(StepReport(levels=LEVELS))
    recorder.on_restart()
    assert value("ultrafast_kv_bytes", {"level": "host"}) == 0
    recorder.on_report(StepReport(levels=replace(LEVELS, is_disk_on=False, num_saved=2)))
    assert value("ultrafast_kv_capacity_bytes", {"level": "disk"}) == 0
    assert value("ultrafast_kv_moved_runs_total", {"way": "save"}) == 7


def test_restarts_and_age() -> None:
    metrics = Metrics()
    Recorder(metrics).on_restart()
    ages: list[float | None] = [None, 2.5]
    metrics.watch_last_step_age(lambda: ages.pop(0))
    value = metrics.registry.get_sample_value
    assert value("ultrafast_engine_restarts_total") == 1
    assert [value("ultrafast_last_step_age_seconds") for _ in range(2)] == [0.0, 2.5]


def written(log_format: Literal["text", "json"], level: str = "info") -> str:
    stream = io.StringIO()
    set_up_logging(level, log_format, stream)
    logger = logging.getLogger("ultrafast.test")
    log_fields(logger, logging.INFO, "request", {"id": "a\nb", "status": 200, "total_s": 0.123456789, "none": None})
    logger.debug("hidden")
    logging.getLogger("uvicorn.error").info("hidden")
    logging.getLogger("uvicorn.error").warning("seen")
    set_up_logging("info", "text", io.StringIO())
    return stream.getvalue()


def test_text_lines() -> None:
    first, second = written("text").splitlines()
    assert first.endswith("info ultrafast.test: request id=a\\nb status=200 total_s=0.123457")
    assert second.endswith("warning uvicorn.error: seen")


def test_json_lines() -> None:
    first = json.loads(written("json").splitlines()[0])
    assert first["message"] == "request"
    assert (first["id"], first["status"], first["level"]) == ("a\nb", 200, "info")
    assert "none" not in first
    assert first["time"].endswith("Z")


def test_levels() -> None:
    assert "request" not in written("text", "error")
