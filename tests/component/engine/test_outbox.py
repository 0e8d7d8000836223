"""The child's way out, over a real socket pair."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ultrafast.core.events import KvLevelsChanged, RequestFinished, RequestScheduled, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine import outbox as outbox_module
from ultrafast.engine.codec import client_side_reader
from ultrafast.engine.messages import FromEngine, Heartbeat, LoadFailed, StepReport
from ultrafast.engine.outbox import MergedReport, Outbox

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(30)
        yield ours, theirs


def step(index: int, name: str = "a") -> StepReport:
    stats = StepFinished(index, 0.0, 0.0, 0.0, 1, 0, 1, 0, 1, 0, 0, 0, 0)
    return StepReport(tokens=[TokenProduced(name, index)], stats=stats)


def end(name: str = "a") -> StepReport:
    done = RequestFinished(name, FinishReason.STOP, ServiceTier.DEFAULT, 1, 0, 0, 1, 0.0, None, None, 0.0)
    return StepReport(finished=[done])


class Reader:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._frames = client_side_reader()
        self.messages: list[FromEngine] = []

    def read_until_end(self, name: str = "a") -> list[StepReport]:
        while True:
            self.messages += self._frames.feed(self._socket.recv(65536))
            reports = [message for message in self.messages if isinstance(message, StepReport)]
            if any(done.request_id == name for report in reports for done in report.finished):
                return reports


def test_each_report_is_a_message_of_its_own_while_the_reader_keeps_up(pair: Pair) -> None:
    box = Outbox(pair[0])
    for index in range(3):
        box.send_report(step(index))
    box.send_report(end())
    assert Reader(pair[1]).read_until_end() == [step(0), step(1), step(2), end()]


@pytest.mark.parametrize("max_tokens_per_frame", [100, 1_000_000])
def test_a_slow_reader_gets_merged_reports_in_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, max_tokens_per_frame: int
) -> None:
    monkeypatch.setattr(outbox_module, "MAX_TOKENS_PER_FRAME", max_tokens_per_frame)
    box = Outbox(pair[0])
    num_steps = 20_000
    box.send_report(StepReport(scheduled=[RequestScheduled("a", 0.0, 0)]))
    for index in range(num_steps):  # nobody reads: this must neither block nor lose anything
        box.send_report(step(index))
    box.send_report(end())
    assert box.send_if_free(Heartbeat(1, 0.0, has_work=True)) is False
    flusher = threading.Thread(target=flush_all, args=(box,))
    flusher.start()
    reports = Reader(pair[1]).read_until_end()
    flusher.join()
    assert [token.token for report in reports for token in report.tokens] == list(range(num_steps))
    assert len(reports) < num_steps / 2
    assert reports[-1].finished
    assert reports[-1].stats is not None
    assert reports[-1].stats.step == num_steps - 1
    assert max(len(report.tokens) for report in reports) > 1
    assert max(len(report.tokens) for report in reports) <= max_tokens_per_frame


def flush_all(box: Outbox) -> None:
    while not box.send_if_free(Heartbeat(1, 0.0, has_work=True)):
        box.wait(30)


def test_last_words_wait_for_room(pair: Pair) -> None:
    box = Outbox(pair[0])
    while box.send_if_free(Heartbeat(1, 0.0, has_work=True)):
        pass
    reader = threading.Thread(target=read_all, args=(pair[1], received := []))
    reader.start()
    box.send_last_words(LoadFailed("no"), timeout_s=30)
    pair[0].shutdown(socket.SHUT_WR)
    reader.join()
    assert received[-1] == LoadFailed("no")


def read_all(sock: socket.socket, received: list[FromEngine]) -> None:
    frames = client_side_reader()
    while data := sock.recv(65536):
        received += frames.feed(data)


def test_last_words_give_up(pair: Pair) -> None:
    box = Outbox(pair[0])
    while box.send_if_free(Heartbeat(1, 0.0, has_work=True)):
        pass
    box.send_last_words(LoadFailed("no"), timeout_s=0.01)


def test_a_peer_that_is_gone_is_no_error(pair: Pair) -> None:
    box = Outbox(pair[0])
    pair[1].close()
    for index in range(3):
        box.send_report(step(index))


def test_what_was_told_of_kv_levels_survives_a_merge() -> None:
    levels = KvLevelsChanged(1, 2, 3, 4, 5, 6, True, 7, 8, 9, 10, 11, 12)
    merged = MergedReport()
    merged.add(StepReport(levels=levels))
    assert merged
    merged.add(step(1))
    assert merged.take().levels == levels
    assert not merged
