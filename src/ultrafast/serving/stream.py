"""One choice: tokens in, deltas out.

    token -> bytes -> text -> stop strings -> reasoning -> tool calls -> Delta

Work per token is constant. A token counts as delivered when the text it belongs to is: what follows a stop string is neither
delivered nor counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ultrafast.core.events import TokenProduced
from ultrafast.core.step import TokenLogprobs
from ultrafast.serving.contract import Delta, LogprobEntry, ToolCallDelta
from ultrafast.serving.detokenize import Detokenizer
from ultrafast.serving.reasoning import ReasoningSplitter
from ultrafast.serving.stops import StopAutomaton, StopFilter
from ultrafast.serving.tool_formats import ToolCall, ToolFormat, new_call_id
from ultrafast.serving.tool_parsers import Parsed, new_parser


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the output of a call is read; shared by its choices.

    Attributes:
        pieces: token id -> bytes of text.
        overrides: token id -> bytes, for control tokens that the parsers must see.
        stops: compiled stop strings, None where there are none.
        min_tokens: a stop string counts only where it ends in the text of a later token than the first so many (as in vLLM).
        splits_reasoning: the model thinks between tags; `is_thinking`: the prompt has opened the first one.
        tool_format, tool_names: how calls are written and which exist; None = no calls.
        special_text: token id -> text of control tokens, for log-probabilities of alternatives.
    """

    pieces: Sequence[bytes]
    overrides: Mapping[int, bytes] | None = None
    stops: StopAutomaton | None = None
    min_tokens: int = 0
    splits_reasoning: bool = False
    is_thinking: bool = False
    tool_format: ToolFormat | None = None
    tool_names: frozenset[str] = frozenset()
    special_text: Callable[[int], str] | None = None


class ChoiceStream:
    """State of one choice. Not thread-safe; lives on the event loop.

    Attributes:
        index: the choice's number in the answer.
        num_tokens: tokens delivered so far.
        num_tool_calls: tool calls delivered so far.
        is_plain: the text is passed on as it is: no stop strings, reasoning or tool calls to look for.
        ends_by_itself: text may end it (a stop string); else only the engine does.
        is_stopped: a stop string was found; nothing more will be delivered.
    """

    def __init__(self, index: int, plan: OutputPlan) -> None:
        self.index = index
        self.num_tokens = 0
        self.num_tool_calls = 0
        self._plan = plan
        self._detokenizer = Detokenizer(plan.pieces, plan.overrides)
        self._stop = StopFilter(plan.stops) if plan.stops is not None else None
        self._reasoning = ReasoningSplitter(plan.is_thinking) if plan.splits_reasoning else None
        self._parser = new_parser(plan.tool_format, plan.tool_names) if plan.tool_format is not None else None
        self._waiting: deque[tuple[int, LogprobEntry | None]] = deque()
        self._num_taken = 0
        self._num_chars = 0
        self._num_passed_chars = 0
        self.ends_by_itself = self._stop is not None
        self.is_plain = self._stop is None and self._reasoning is None and self._parser is None

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the choice."""
        return self._stop.matched if self._stop is not None else None

    @property
    def is_stopped(self) -> bool:
        return self._stop is not None and self._stop.matched is not None

    @property
    def is_verbatim(self) -> bool:
        """What was delivered is the text of all tokens: nothing cut off, nothing read as reasoning or a call."""
        return self._reasoning is None and self._parser is None and not self.is_stopped

    @property
    def _may_stop(self) -> bool:
        return self._num_taken > self._plan.min_tokens

    def add(self, tokens: Sequence[TokenProduced]) -> Delta | None:
        """Take tokens that arrived together; return what they make visible, None when that is nothing yet."""
        if len(tokens) == 1:
            return self.add_one(tokens[0])
        return self._add_all(tokens)

    def add_one(self, event: TokenProduced) -> Delta | None:
        """The same for a token that came alone.

        The usual case in short: a token that is text by itself, nothing held back, nothing to look for.
        """
        if not self.is_plain or event.logprobs is not None or self._waiting:
            return self._add_all((event,))
        text = self._detokenizer.add(event.token)
        if not text:
            self._waiting.append((self._num_chars, None))
            return None
        self._num_passed_chars = self._num_chars = self._num_chars + len(text)
        self.num_tokens += 1
        return Delta(self.index, text, num_tokens=1)

    def _add_all(self, tokens: Sequence[TokenProduced]) -> Delta | None:
        passed: list[str] = []
        for event in tokens:
            text = self._detokenizer.add(event.token)
            self._waiting.append((self._num_chars, self._entry(event.token, event.logprobs)))
            self._num_chars += len(text)
            self._num_taken += 1
            visible = self._stop.add(text, may_match=self._may_stop) if self._stop is not None else text
            passed.append(visible)
            self._num_passed_chars += len(visible)
            if self.is_stopped:
                break
        return self._delta("".join(passed), is_last=self.is_stopped)

    def finish(self) -> Delta | None:
        """The engine has no more tokens: return all that was held back."""
        if self.is_stopped:
            return None
        text = self._detokenizer.finish()
        if self.is_plain and not text and not self._waiting:
            return None
        self._num_chars += len(text)
        if self._stop is not None:
            text = self._stop.add(text, may_match=self._may_stop)
            text += "" if self.is_stopped else self._stop.finish()
        self._num_passed_chars += len(text)
        return self._delta(text, is_last=True)

    def _delta(self, text: str, *, is_last: bool) -> Delta | None:
        reasoning, parsed = self._read(text)
        if is_last:
            reasoning, parsed = self._read_last(reasoning, parsed)
        if not (parsed.text or reasoning or parsed.calls or is_last):
            return None
        num_tokens, logprobs = self._take_delivered(is_last)
        if not (parsed.text or reasoning or parsed.calls or num_tokens):
            return None
        calls = tuple(self._call_delta(call) for call in parsed.calls)
        return Delta(self.index, parsed.text, reasoning, calls, logprobs, num_tokens)

    def _read(self, text: str) -> tuple[str, Parsed]:
        reasoning = ""
        if self._reasoning is not None and text:
            reasoning, text = self._reasoning.add(text)
        return reasoning, self._parser.add(text) if self._parser is not None and text else Parsed(text)

    def _read_last(self, reasoning: str, parsed: Parsed) -> tuple[str, Parsed]:
        texts, calls = [parsed.text], list(parsed.calls)
        rest = ""
        if self._reasoning is not None:
            more_reasoning, rest = self._reasoning.finish()
            reasoning += more_reasoning
        if self._parser is None:
            texts.append(rest)
        else:
            for part in (self._parser.add(rest), self._parser.finish()):
                texts.append(part.text)
                calls.extend(part.calls)
        return reasoning, Parsed("".join(texts), tuple(calls))

    def _take_delivered(self, is_last: bool) -> tuple[int, tuple[LogprobEntry, ...]]:
        """Count the tokens whose text has passed the stop filter; at a natural end that is all of them."""
        is_everything = is_last and not self.is_stopped
        num_tokens = 0
        entries: list[LogprobEntry] = []
        while self._waiting and (is_everything or self._waiting[0][0] < self._num_passed_chars):
            _, entry = self._waiting.popleft()
            num_tokens += 1
            if entry is not None:
                entries.append(entry)
        self.num_tokens += num_tokens
        return num_tokens, tuple(entries)

    def _entry(self, token: int, logprobs: TokenLogprobs | None) -> LogprobEntry | None:
        if logprobs is None:
            return None
        top = tuple((*self._spelled(other), value) for other, value in logprobs.top)
        piece = self._plan.pieces[token]
        return LogprobEntry(piece.decode("utf-8", "replace"), piece, logprobs.logprob, top)

    def _spelled(self, token: int) -> tuple[str, bytes]:
        """An alternative was not delivered, so a control token may be shown as what it is."""
        piece = self._plan.pieces[token]
        if not piece and self._plan.special_text is not None:
            piece = self._plan.special_text(token).encode()
        return piece.decode("utf-8", "replace"), piece

    def _call_delta(self, call: ToolCall) -> ToolCallDelta:
        assert self._plan.tool_format is not None, "a call without a format"
        delta = ToolCallDelta(self.num_tool_calls, new_call_id(self._plan.tool_format), call.name, call.arguments)
        self.num_tool_calls += 1
        return delta
