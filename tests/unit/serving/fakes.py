"""A small tokenizer that merges across characters, and an engine that plays a script."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from tests.engine_facts import engine_facts

from ultrafast.core.events import Event, RequestFinished, RequestScheduled, TokenProduced
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.step import TokenLogprobs
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.options import EngineFacts

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "[INST]", "[/INST]", "[TOOL_CALLS]")
MERGES = (
    "user\n", "\nH", "er", "us", "user", ">\n", "\n\n", "Hello", " He", "n<", "|>", "<|", "im",
    "<tool_call>", "</tool_call>", "<think>",
)  # fmt: skip


class FakeTokenizer:
    """Greedy longest match over bytes and `merges`; control tokens come first, as in real vocabularies."""

    def __init__(
        self,
        chat_template: str | None = None,
        control: Sequence[str] = CONTROL,
        adds_bos: bool = False,
        strips_right: bool = False,
        merges: Sequence[str] = MERGES,
    ) -> None:
        self.chat_template = chat_template
        self.control = {text: index for index, text in enumerate(control)}
        words = [bytes([byte]) for byte in range(256)] + [merge.encode() for merge in merges]
        self.pieces: list[bytes] = [b""] * len(control) + words
        self._ids = {word: len(control) + index for index, word in enumerate(words)}
        self._lengths = sorted({len(word) for word in words}, reverse=True)
        self.size = len(self.pieces)
        self.bos: int | None = self.control.get("<s>")
        self.eos: int | None = self.control.get("</s>")
        self.adds_bos = adds_bos
        self.metadata: Mapping[str, str] = {}
        self._strips_right = strips_right
        self._control_pattern = re.compile("|".join(re.escape(text) for text in sorted(control, key=len, reverse=True)))
        self.num_tokenized_chars = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.num_tokenized_chars += len(text)
        result = [self.bos] if add_special and self.adds_bos and self.bos is not None else []
        position = 0
        for found in self._control_pattern.finditer(text) if parse_special else ():
            result += self._raw(text[position : found.start()])
            result.append(self.control[found.group()])
            position = found.end()
            while self._strips_right and position < len(text) and text[position] in " \n":
                position += 1
        return result + self._raw(text[position:])

    def _raw(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace")
        result = []
        position = 0
        while position < len(data):
            length = next(n for n in self._lengths if data[position : position + n] in self._ids)
            result.append(self._ids[data[position : position + length]])
            position += length
        return result

    def special_text(self, token: int) -> str:
        names = list(self.control)
        return names[token] if token < len(names) else self.pieces[token].decode("utf-8", "replace")


def facts(max_request_tokens: int = 1000, vocab_size: int = 300) -> EngineFacts:
    return engine_facts(build="b0", max_request_tokens=max_request_tokens, vocab_size=vocab_size)


Script = Callable[[Request], list[tuple[Event, ...]]]


class ScriptedStream:
    def __init__(self, request: Request, batches: list[tuple[Event, ...]], hangs: bool) -> None:
        self.request = request
        self.shortcut: Callable[[Event], bool] | None = None
        self.is_aborted = False
        self.is_counted = False
        self.num_delivered: int | None = None
        self.is_stopped = False
        self._batches = batches
        self._hangs = hangs

    async def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        for batch in self._batches:
            await asyncio.sleep(0)
            yield batch
        if self._hangs:
            await asyncio.Event().wait()

    @property
    def output_tokens(self) -> list[int]:
        return [event.token for batch in self._batches for event in batch if isinstance(event, TokenProduced)]

    def stop(self) -> None:
        self.is_stopped = True
        self.abort()

    def abort(self) -> None:
        self.is_aborted = True


class ScriptedEngine:
    """Plays `script(request)` for each request. `hangs`: streams never end by themselves."""

    def __init__(self, script: Script, engine_facts: EngineFacts | None = None, hangs: bool = False) -> None:
        self.facts = engine_facts or facts()
        self.script = script
        self.hangs = hangs
        self.streams: list[ScriptedStream] = []
        self.error: Exception | None = None
        self.is_full = False
        self.num_filled_up = 0

    def looks_full(self, tier: ServiceTier, *, wholly: bool = False) -> bool:
        if wholly and self.num_filled_up:
            self.num_filled_up -= 1
            return True
        return self.is_full and not wholly

    @property
    def requests(self) -> list[Request]:
        return [stream.request for stream in self.streams]

    def submit(self, request: Request) -> ScriptedStream:
        if self.error is not None:
            raise self.error
        stream = ScriptedStream(request, self.script(request), self.hangs)
        self.streams.append(stream)
        return stream


def finished(
    request: Request, reason: FinishReason = FinishReason.STOP, num_output: int = 0, error: str | None = None
) -> RequestFinished:
    return RequestFinished(
        request_id=request.request_id, reason=reason, tier=request.tier, num_prompt_tokens=len(request.prompt_tokens),
        num_cached_tokens=3, num_computed_tokens=5, num_output_tokens=num_output, arrival_s=request.arrival_s,
        scheduled_s=10.5, first_token_s=11.0, finished_s=13.0, error=error,
    )  # fmt: skip


def says(
    tokenizer: FakeTokenizer,
    text: str | Sequence[str],
    reason: FinishReason = FinishReason.STOP,
    logprobs: TokenLogprobs | None = None,
) -> Script:
    """A script that produces a text, one token per batch; a sequence gives each further request its own text."""
    texts = [text] if isinstance(text, str) else list(text)
    played = 0

    def script(request: Request) -> list[tuple[Event, ...]]:
        nonlocal played
        tokens = tokenizer.tokenize(texts[min(played, len(texts) - 1)], add_special=False, parse_special=True)
        played += 1
        batches: list[tuple[Event, ...]] = [(RequestScheduled(request.request_id, 10.5, 3),)]
        batches += [(TokenProduced(request.request_id, token, logprobs),) for token in tokens]
        return [*batches, (finished(request, reason, len(tokens)),)]

    return script
