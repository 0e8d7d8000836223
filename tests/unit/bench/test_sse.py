import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.bench.sse import MAX_EVENT_BYTES, SseError, SseParser


def parse(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"data\n\n", []),
        (b"data: \n\n", []),
        (b"\n\n\ndata: a\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"datax: a\n\n", []),
    ],
)
def test_events_of_the_specification(stream: bytes, events: list[bytes]) -> None:
    assert parse(stream) == events


STREAM = b"\xef\xbb\xbf: hi\r\n\r\ndata: one\r\n\r\ndata: t\xc3\xa4\ndata: wo\n\ndata: three\r\rdata: four\r\ndata: more\r\n\r\n"


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_split_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert parse(*pieces) == [b"one", b"t\xc3\xa4\nwo", b"three", b"four\nmore"]


def test_an_event_is_out_at_its_last_carriage_return() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [b"b"]


def test_an_endless_event_is_an_error() -> None:
    parser = SseParser()
    parser.feed(b"x" * MAX_EVENT_BYTES)
    with pytest.raises(SseError):
        parser.feed(b"x")
