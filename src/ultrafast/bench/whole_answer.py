"""Answers that come as one JSON body instead of a stream: the first text a person sees comes with the last."""

from __future__ import annotations

import msgspec

from ultrafast.bench.client import StreamReader
from ultrafast.bench.records import Chunk, ChunkKind, ErrorClass
from ultrafast.bench.wire import read_usage


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: dict[str, object] = {}


_decode = msgspec.json.Decoder(_Answer, strict=False).decode


class WholeAnswerReader(StreamReader):
    """Reads a chat completion without `stream`. Its one chunk has the stamp of the end of the body."""

    def _judge_plain(self) -> None:
        record = self._record
        body = b"".join(self._body)
        try:
            answer = _decode(body)
        except msgspec.DecodeError as error:
            self._fail(ErrorClass.PROTOCOL, f"an answer that cannot be read: {error}")
            return
        record.usage = read_usage(answer.usage)
        text = answer.choices[0].message.content if answer.choices else None
        if not text:
            self._fail(ErrorClass.EMPTY, "a complete answer without any output")
            return
        assert record.end_ns is not None, "the body has ended"
        record.finish_reason = answer.choices[0].finish_reason
        record.chunks.append(Chunk(record.end_ns, record.usage.num_output_tokens, False, ChunkKind.CONTENT))
        self._texts.append(text)
