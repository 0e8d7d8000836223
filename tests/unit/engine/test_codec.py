from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.core.events import RequestFinished, RequestPreempted, RequestScheduled, Reserved, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.step import TokenLogprobs
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine import codec
from ultrafast.engine.messages import (
    MAX_FRAME_BYTES,
    Abort,
    Configure,
    FromEngine,
    Heartbeat,
    LoadFailed,
    Loading,
    Shutdown,
    StepReport,
    Submit,
    ToEngine,
)
from ultrafast.engine.options import EngineOptions

ids = st.text(max_size=20)
seconds = st.floats(allow_nan=False, allow_infinity=False)
tokens = st.integers(0, 2**31 - 1)
counts = st.integers(0, 2**40)
token_lists = st.lists(tokens, max_size=40).map(tuple)
logprobs = st.builds(TokenLogprobs, seconds, st.lists(st.tuples(tokens, seconds), max_size=3).map(tuple))
params = st.builds(
    SamplingParams,
    temperature=seconds,
    logit_bias=st.lists(st.tuples(tokens, seconds), max_size=3).map(tuple),
    seed=st.integers(-(2**63), 2**63 - 1),
    stop_token_ids=token_lists,
    num_logprobs=st.none() | st.integers(0, 20),
    grammar=st.none() | st.text(max_size=20),
)
requests = st.builds(
    Request,
    ids,
    token_lists,
    params,
    st.sampled_from(ServiceTier),
    seconds,
    token_lists,
    cache_salt=ids,
    use_cache=st.booleans(),
    is_deterministic=st.booleans(),
)
reserved = st.lists(st.builds(Reserved, st.sampled_from(ServiceTier), counts, counts, seconds), max_size=3).map(tuple)
reports = st.builds(
    StepReport,
    st.lists(st.builds(TokenProduced, ids, tokens, st.none() | logprobs), max_size=3),
    st.lists(st.builds(RequestScheduled, ids, seconds, counts), max_size=3),
    st.lists(st.builds(RequestPreempted, ids, seconds, st.sampled_from(ServiceTier)), max_size=3),
    st.lists(st.builds(RequestFinished, ids, st.sampled_from(FinishReason), st.sampled_from(ServiceTier), *[counts] * 4, seconds,
                       st.none() | seconds, st.none() | seconds, seconds, counts, st.none() | ids), max_size=3),
    st.none() | st.builds(lambda *numbers, **more: StepFinished(*numbers, **more), counts, *[seconds] * 3, *[counts] * 9,
                          reserved=reserved),
)  # fmt: skip
to_engine = st.one_of(
    st.builds(Submit, requests),
    st.builds(Abort, st.lists(ids, max_size=3)),
    st.just(Shutdown()),
    st.builds(Configure, st.builds(EngineOptions, ids, num_threads=counts, swa_full=st.booleans())),
)
from_engine = st.one_of(
    reports,
    st.builds(Heartbeat, counts, seconds, st.booleans()),
    st.builds(Loading, ids, seconds),
    st.builds(LoadFailed, ids, st.none() | ids, st.none() | ids, st.none() | ids, st.booleans()),
)


@given(st.lists(to_engine, max_size=5), st.data())
def test_commands_survive_the_wire_however_it_is_cut(messages: list[ToEngine], data: st.DataObject) -> None:
    assert transfer(messages, codec.engine_side_reader(), data) == messages


@given(st.lists(from_engine, max_size=5), st.data())
def test_answers_survive_the_wire_however_it_is_cut(messages: list[FromEngine], data: st.DataObject) -> None:
    assert transfer(messages, codec.client_side_reader(), data) == messages


def transfer(messages: list, reader: codec.FrameReader, data: st.DataObject) -> list:
    stream = b"".join(codec.encode_frame(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    received = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[begin:end])
    return received


def test_one_byte_at_a_time() -> None:
    frame = codec.encode_frame(Abort(["a", "b"]))
    reader = codec.engine_side_reader()
    received = [message for byte in frame for message in reader.feed(bytes([byte]))]
    assert received == [Abort(["a", "b"])]


def test_a_length_above_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(codec.FrameError, match="exceeds"):
        codec.engine_side_reader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_a_message_above_the_limit_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 10)
    with pytest.raises(codec.FrameError, match=r"Abort of .* exceeds"):
        codec.encode_frame(Abort(["x" * 20]))


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"hello", msgspec.msgpack.encode({"type": "unknown"}), msgspec.msgpack.encode({"type": "submit"})]
)
def test_an_unreadable_message_is_an_error(payload: bytes) -> None:
    with pytest.raises(codec.FrameError, match="unreadable"):
        codec.engine_side_reader().feed(len(payload).to_bytes(4, "little") + payload)


def test_a_command_of_the_other_direction_is_an_error() -> None:
    with pytest.raises(codec.FrameError):
        codec.client_side_reader().feed(bytes(codec.encode_frame(Shutdown())))
