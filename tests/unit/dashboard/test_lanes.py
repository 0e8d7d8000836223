"""Who decodes, who prefills which chunk, who waits."""

from __future__ import annotations

from tests.unit.dashboard.events import live, report, stats

from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.lanes import MAX_LANES, Lanes, short_id
from ultrafast.dashboard.views import LaneState


def states(lanes: Lanes, last: object, *requests: object) -> dict[str, LaneState]:
    return {lane.id[:6]: lane.state for lane in lanes.read(list(requests), last, 15.0)}  # type: ignore[arg-type]


def test_states_of_one_step() -> None:
    lanes = Lanes()
    lanes.on_report(report(scheduled=("aaaaaa", "bbbbbb", "cccccc", "dddddd")))
    step = report(tokens=("aaaaaa", "bbbbbb"), preempted=("dddddd",), step=stats(("bbbbbb", 64, 36)))
    lanes.on_report(step)
    requests = [live(name) for name in ("aaaaaa", "bbbbbb", "cccccc", "dddddd", "eeeeee")]
    assert states(lanes, step, *requests) == {
        "aaaaaa": LaneState.DECODE,
        "bbbbbb": LaneState.PREFILL,  # the chunk that ends a prompt brings a token, too
        "cccccc": LaneState.PAUSED,
        "dddddd": LaneState.PREEMPTED,
        "eeeeee": LaneState.WAITING,
    }


def test_a_lane_tells_how_far_the_prompt_is() -> None:
    lanes = Lanes()
    lanes.on_report(report(scheduled=("aaaaaa",)))
    step = report(step=stats(("aaaaaa", 32, 16)))
    lanes.on_report(step)
    (lane,) = lanes.read([live("aaaaaa", num_output=3)], step, 15.0)
    assert (lane.num_computed_tokens, lane.chunk, lane.num_prompt_tokens) == (48, (32, 16), 100)
    assert (lane.num_output_tokens, lane.max_tokens, lane.age_s) == (3, 50, 5.0)


def test_the_progress_of_a_continued_request_stays_within_its_prompt() -> None:
    lanes = Lanes()
    lanes.on_report(report(scheduled=("aaaaaa",)))
    lanes.on_report(report(step=stats(("aaaaaa", 90, 25))))
    (lane,) = lanes.read([live("aaaaaa", num_output=20)], None, 15.0)
    assert lane.num_computed_tokens == 100


def test_an_end_and_a_restart_leave_nothing_behind() -> None:
    lanes = Lanes()
    lanes.on_report(report(scheduled=("aaaaaa", "bbbbbb", "cccccc"), preempted=("bbbbbb",)))
    lanes.on_report(report(finished=("aaaaaa", "bbbbbb")))
    assert lanes.num_running == 1
    lanes.on_restart()
    assert lanes.num_running == 0
    assert states(lanes, None, live("bbbbbb"), live("cccccc")) == {"bbbbbb": LaneState.WAITING, "cccccc": LaneState.WAITING}


def test_many_are_cut_off_after_the_running_and_the_most_urgent() -> None:
    lanes = Lanes()
    waiting = [live(f"w{i:05}", tier=ServiceTier.FLEX) for i in range(40)]
    urgent = live("urgent", tier=ServiceTier.ULTRAFAST)
    running = live("runner")
    lanes.on_report(report(scheduled=("runner",)))
    requests = [*waiting, urgent, running]
    shown = [lane.id[:6] for lane in lanes.read(requests, None, 15.0)]
    assert len(shown) == MAX_LANES
    assert shown[:3] == ["runner", "urgent", "w00000"]
    queues = lanes.queues(requests)
    assert (queues.num_running, queues.num_waiting) == (1, 41)
    assert queues.waiting_by_tier == [1, 0, 0, 40]
    assert queues.running_by_tier == [0, 0, 1, 0]


def test_short_ids() -> None:
    assert short_id("chatcmpl-0123456789abcdef01234567:12") == "234567:12"
