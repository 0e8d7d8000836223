"""Frames on the socket between the API process and an engine child: a 4-byte little-endian length, then MessagePack.

Knows the byte layout and the message schema, nothing of sockets. A reader belongs to one thread; the encoders may be shared.

    |length u32 LE|  MessagePack of one message  |length u32 LE| ...
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from ultrafast.engine.messages import MAX_FRAME_BYTES, FromEngine, ToEngine

HEADER_BYTES = 4
_HEADER = struct.Struct("<I")
_EMPTY_HEADER = bytes(HEADER_BYTES)
_ENCODER = msgspec.msgpack.Encoder()

MessageT = TypeVar("MessageT")


class FrameError(Exception):
    """The peer sent (or we were asked to send) a frame that is too large or unreadable: the connection is of no more use."""


class FrameReader(Generic[MessageT]):
    """Turns pieces of a byte stream, cut anywhere, into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT]) -> None:
        self._decoder = decoder
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """Return the messages that `data` completes, in order; the unfinished rest is kept.

        Raises:
            FrameError: a length above `MAX_FRAME_BYTES`, or a message that the schema refuses.
        """
        if not self._rest:
            length = int.from_bytes(data[:HEADER_BYTES], "little")
            if HEADER_BYTES + length == len(data) and length <= MAX_FRAME_BYTES:
                try:
                    return [self._decoder.decode(data[HEADER_BYTES:])]  # nearly always: one read, one whole frame
                except msgspec.DecodeError as error:
                    raise _unreadable(length, error) from error
            messages, used = self._decode(data)
            self._rest += memoryview(data)[used:]
            return messages
        self._rest += data
        messages, used = self._decode(self._rest)
        del self._rest[:used]
        return messages

    def _decode(self, data: bytes | bytearray) -> tuple[list[MessageT], int]:
        messages = []
        position = 0
        with memoryview(data) as view:
            while len(data) - position >= HEADER_BYTES:
                (length,) = _HEADER.unpack_from(data, position)
                if length > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
                end = position + HEADER_BYTES + length
                if end > len(data):
                    break
                with view[position + HEADER_BYTES : end] as payload:
                    messages.append(self._decode_message(payload))
                position = end
        return messages, position

    def _decode_message(self, payload: bytes | memoryview) -> MessageT:
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise _unreadable(len(payload), error) from error


def _unreadable(num_bytes: int, error: msgspec.DecodeError) -> FrameError:
    """The error for bytes that are no message, or none that the schema knows (a ValidationError is a DecodeError)."""
    return FrameError(f"unreadable message of {num_bytes} bytes: {error}")


def encode_frame(message: ToEngine | FromEngine) -> bytearray:
    """Return the whole frame of one message.

    Raises:
        FrameError: the message is larger than `MAX_FRAME_BYTES`.
    """
    frame = bytearray(_EMPTY_HEADER)
    _ENCODER.encode_into(message, frame, HEADER_BYTES)
    length = len(frame) - HEADER_BYTES
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a {type(message).__name__} of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    _HEADER.pack_into(frame, 0, length)
    return frame


def engine_side_reader() -> FrameReader[ToEngine]:
    """What the engine child reads with."""
    return FrameReader(msgspec.msgpack.Decoder(ToEngine))


def client_side_reader() -> FrameReader[FromEngine]:
    """What the API process reads with."""
    return FrameReader(msgspec.msgpack.Decoder(FromEngine))
