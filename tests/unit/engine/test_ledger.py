"""Live requests across crashes, with a child that exists only as numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.core.clock import ManualClock
from ultrafast.core.events import Event, RequestFinished, RequestScheduled, TokenProduced
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.ledger import Ledger
from ultrafast.engine.messages import StepReport
from ultrafast.engine.stream import EngineStream


def make_request(name: str, max_tokens: int = 10) -> Request:
    return Request(name, (1, 2), SamplingParams(max_tokens=max_tokens), arrival_s=1.0)


def finished(request: Request, num_output_tokens: int, reason: FinishReason = FinishReason.LENGTH) -> RequestFinished:
    return RequestFinished(
        request.request_id,
        reason,
        request.tier,
        num_prompt_tokens=2,
        num_cached_tokens=7,
        num_computed_tokens=9,
        num_output_tokens=num_output_tokens,
        arrival_s=1.0,
        scheduled_s=50.0,
        first_token_s=51.0,
        finished_s=60.0,
    )


class Book:
    """A ledger with its streams."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.ledger = Ledger(self.clock, max_request_crashes=3)
        self.streams: dict[str, EngineStream] = {}
        self.observed: list[StepReport] = []

    def add(self, request: Request) -> None:
        stream = EngineStream(request.request_id, lambda _: None)
        self.streams[request.request_id] = stream
        self.ledger.add(request, stream)

    def events(self, name: str) -> tuple[Event, ...]:
        async def read() -> tuple[Event, ...]:
            return await anext(self.streams[name], ())

        return asyncio.run(read())


def tokens(name: str, *values: int) -> StepReport:
    return StepReport(tokens=[TokenProduced(name, value) for value in values])


def test_a_lost_child_gives_its_requests_back_with_what_they_produced() -> None:
    book = Book()
    for name in ("waiting", "second", "first"):
        book.add(make_request(name))
    assert [request.request_id for request in book.ledger.take_unsent()] == ["waiting", "second", "first"]
    assert book.ledger.take_unsent() == []
    book.ledger.apply(StepReport(scheduled=[RequestScheduled("first", 2.0, 0)]))
    book.ledger.apply(StepReport(scheduled=[RequestScheduled("second", 3.0, 0)], tokens=[TokenProduced("first", 5)]))
    book.add(make_request("newcomer"))
    assert book.ledger.child_lost().finished == []
    again = book.ledger.take_unsent()
    assert [request.request_id for request in again] == ["first", "second", "waiting", "newcomer"]
    assert [request.output_tokens for request in again] == [(5,), (), (), ()]
    assert [request.had_place for request in again] == [True, True, False, False]
    assert [request.placed_s is not None for request in again] == [True, True, False, False], "timed from their first life"
    assert book.ledger.num_sent == 4


def test_after_a_crash_the_terminal_event_keeps_the_times_of_the_first_life() -> None:
    book = Book()
    request = make_request("a")
    book.add(request)
    book.ledger.take_unsent()
    book.ledger.apply(StepReport(scheduled=[RequestScheduled("a", 2.0, 3)], tokens=[TokenProduced("a", 5)]))
    book.ledger.child_lost()
    book.ledger.take_unsent()
    seen = book.ledger.apply(StepReport(tokens=[TokenProduced("a", 6)], finished=[finished(request, 2)]))
    end = seen.finished[0]
    assert (end.scheduled_s, end.first_token_s, end.num_cached_tokens) == (2.0, 100.0, 3)
    assert book.events("a")[-1] == end


@pytest.mark.parametrize("num_claimed", [0, 2])
def test_a_gap_or_a_repeat_never_passes_as_success(num_claimed: int) -> None:
    book = Book()
    request = make_request("a")
    book.add(request)
    book.ledger.take_unsent()
    seen = book.ledger.apply(StepReport(tokens=[TokenProduced("a", 5)], finished=[finished(request, num_claimed)]))
    assert seen.finished[0].reason is FinishReason.ERROR
    assert f"produced {num_claimed} tokens but 1 arrived" in str(seen.finished[0].error)


def test_events_of_unknown_requests_go_nowhere() -> None:
    book = Book()
    assert book.ledger.apply(tokens("x", 1)).finished == []
    assert book.ledger.apply(StepReport(finished=[finished(make_request("x"), 1)])).finished == []


def test_an_aborted_request_is_not_sent_again() -> None:
    book = Book()
    book.add(make_request("sent"))
    book.ledger.take_unsent()
    book.add(make_request("unsent"))
    assert book.ledger.mark_aborted("sent") is True
    assert book.ledger.mark_aborted("sent") is False
    assert book.ledger.mark_aborted("unsent") is False
    assert [end.request_id for end in book.ledger.finish_unsent_aborts().finished] == ["unsent"]
    assert [end.reason for end in book.ledger.child_lost().finished] == [FinishReason.ABORT]
    assert book.ledger.take_unsent() == []
    assert len(book.ledger) == 0


def test_one_whose_reader_had_all_that_it_wanted_did_not_abort() -> None:
    told: list[FinishReason] = []
    for is_stopped in (True, False):
        ledger = Ledger(ManualClock(100.0), max_request_crashes=3)
        request = make_request("a")
        stream = EngineStream("a", lambda name, ledger=ledger: ledger.mark_aborted(name))  # type: ignore[misc]
        ledger.add(request, stream)
        ledger.take_unsent()
        stream.stop() if is_stopped else stream.abort()
        report = ledger.apply(StepReport(finished=[finished(request, 0, FinishReason.ABORT)]))
        told.append(report.finished[0].reason)
    assert told == [FinishReason.STOP, FinishReason.ABORT]


def test_a_request_whose_last_token_arrived_is_complete() -> None:
    book = Book()
    book.add(make_request("a", max_tokens=2))
    book.ledger.take_unsent()
    book.ledger.apply(tokens("a", 5, 6))
    assert [end.reason for end in book.ledger.child_lost().finished] == [FinishReason.LENGTH]


def test_a_lone_suspect_is_alone_until_it_makes_progress() -> None:
    book = Book()
    book.add(make_request("suspect"))
    for _ in range(2):
        book.ledger.take_unsent()
        book.ledger.child_lost()
    book.add(make_request("newcomer"))
    assert [request.request_id for request in book.ledger.take_unsent()] == ["suspect"]
    for token in range(4):
        assert book.ledger.is_holding_back
        assert book.ledger.take_unsent() == []
        book.ledger.apply(tokens("suspect", token))
    assert [request.request_id for request in book.ledger.take_unsent()] == ["newcomer"]
    assert not book.ledger.is_holding_back


class Simulation:
    """A child that draws one token per running request and step, and dies when a poisonous request reaches its index."""

    def __init__(self, lengths: list[int], poison: dict[int, int], max_num_running: int) -> None:
        self.book = Book()
        self.max_num_running = max_num_running
        self.poison = {str(index): at for index, at in poison.items()}
        self.requests = {str(index): make_request(str(index), length) for index, length in enumerate(lengths)}
        self.ends: dict[str, RequestFinished] = {}
        self.child: dict[str, list[int]] = {}
        self.num_crashes = 0

    def run(self) -> None:
        for request in self.requests.values():
            self.book.add(request)
        while len(self.book.ledger):
            for request in self.book.ledger.take_unsent():
                self.child[request.request_id] = list(request.output_tokens)
            assert self.child, "live requests, but none is sent"
            running = list(self.child)[: self.max_num_running]
            if any(name in self.poison and len(self.child[name]) >= self.poison[name] for name in running):
                self.crash()
            else:
                self.note(self.book.ledger.apply(self.step(running)))

    def crash(self) -> None:
        self.num_crashes += 1
        self.child.clear()
        self.note(self.book.ledger.child_lost())

    def step(self, running: list[str]) -> StepReport:
        report = StepReport([], [], [], [])
        for name in running:
            request, output = self.requests[name], self.child[name]
            report.scheduled.append(RequestScheduled(name, 0.0, 0))
            report.tokens.append(TokenProduced(name, len(output)))
            output.append(len(output))
            if len(output) == request.params.max_tokens:
                del self.child[name]
                report.finished.append(finished(request, len(output)))
        return report

    def note(self, report: StepReport) -> None:
        for end in report.finished:
            assert end.request_id not in self.ends
            self.ends[end.request_id] = end


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
    st.dictionaries(st.integers(0, 19), st.integers(0, 30), max_size=3),
    st.integers(1, 8),
)
def test_only_poisonous_requests_fail(lengths: list[int], poison: dict[int, int], max_num_running: int) -> None:
    simulation = Simulation(lengths, poison, max_num_running)
    simulation.run()
    deadly = {str(index) for index, at in poison.items() if index < len(lengths) and at < lengths[index]}
    failed = {name for name, end in simulation.ends.items() if end.reason is FinishReason.ERROR}
    assert failed == deadly
    assert simulation.ends.keys() == simulation.requests.keys()
    assert simulation.num_crashes <= len(deadly) * (3 + 2 * len(lengths).bit_length())
    for name, request in simulation.requests.items():
        produced = [event.token for event in simulation.book.events(name) if isinstance(event, TokenProduced)]
        expected = poison[int(name)] if name in deadly else request.params.max_tokens
        assert produced == list(range(expected)), name


def test_a_crash_that_needs_two_requests_together_ends_too() -> None:
    """No one is guilty alone: the trials grow until one of them finishes."""

    class Pair(Simulation):
        def step(self, running: list[str]) -> StepReport:
            self.is_deadly = {"0", "1"} <= set(running)
            return super().step(running)

        def run(self) -> None:
            self.is_deadly = False
            super().run()

        def note(self, report: StepReport) -> None:
            super().note(report)
            if self.is_deadly:
                self.is_deadly = False
                self.crash()

    pair = Pair([200, 200, 200], {}, 8)
    pair.run()
    assert {end.reason for end in pair.ends.values()} == {FinishReason.LENGTH}
    assert pair.num_crashes < 40


def _counted(name: str = "r") -> tuple[Book, EngineStream, Request]:
    book = Book()

    book.ledger = Ledger(book.clock, 3, book.observed.append)
    request = make_request(name)
    book.add(request)
    book.ledger.take_unsent()
    stream = book.streams[name]
    stream.is_counted = True
    return book, stream, request


def test_observers_hear_of_as_many_tokens_as_were_delivered() -> None:
    """The end comes with the tokens; only then does the reader find the stop string among them."""
    book, stream, request = _counted()
    report = StepReport(tokens=tokens("r", 5, 6, 7).tokens, finished=[finished(request, 3)])
    assert book.ledger.apply(report).finished == []
    assert len(book.ledger) == 0, "it lives no more"
    assert [type(event) for event in book.events("r")] == [TokenProduced] * 3 + [RequestFinished]
    stream.num_delivered = 1
    stream.abort()
    stream.abort()
    assert [event.num_output_tokens for late in book.observed for event in late.finished] == [1]


def test_a_reader_that_stopped_it_has_counted_already() -> None:
    book, stream, request = _counted()
    book.ledger.apply(tokens("r", 5, 6))
    stream.num_delivered = 1
    stream.stop()
    seen = book.ledger.apply(StepReport(tokens=tokens("r", 7).tokens, finished=[finished(request, 3, FinishReason.ABORT)]))
    assert [(event.reason, event.num_output_tokens) for event in seen.finished] == [(FinishReason.STOP, 1)]
    assert book.observed == []


def test_a_reader_that_went_away_keeps_nobody_waiting() -> None:
    book, stream, request = _counted()
    stream.abort()
    seen = book.ledger.apply(StepReport(tokens=tokens("r", 7).tokens, finished=[finished(request, 1, FinishReason.ABORT)]))
    assert [(event.reason, event.num_output_tokens) for event in seen.finished] == [(FinishReason.ABORT, 1)]


def test_who_has_no_place_yet_is_counted_by_tier() -> None:
    book = Book()
    requests = [make_request(name) for name in ("a", "b", "c")]
    for request in requests:
        book.add(request)
    book.add(replace(make_request("asks"), is_inquiry=True))
    book.ledger.take_unsent()
    assert book.ledger.num_unplaced(requests[0].tier) == 3
    book.ledger.apply(StepReport(finished=[finished(make_request("asks"), 0, FinishReason.ABORT)]))
    assert book.ledger.num_unplaced(requests[0].tier) == 3
    book.ledger.apply(StepReport(scheduled=[RequestScheduled("a", 2.0, 0)]))
    book.ledger.apply(StepReport(scheduled=[RequestScheduled("a", 3.0, 0)]))  # preempted, and back
    assert book.ledger.num_unplaced(requests[0].tier) == 2
    book.ledger.apply(StepReport(finished=[finished(requests[0], 0), finished(requests[1], 0, FinishReason.EXPIRE)]))
    assert book.ledger.num_unplaced(requests[0].tier) == 1
    assert book.ledger.num_unplaced(ServiceTier.ULTRAFAST) == 0
