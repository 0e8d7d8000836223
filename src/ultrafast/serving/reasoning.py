"""Thoughts apart from the answer: models whose template knows `<think>` begin with `<think>...</think>`."""

from __future__ import annotations

from ultrafast.serving.tool_formats import THINK_CLOSE, THINK_OPEN
from ultrafast.serving.tool_parsers import partial_suffix


class ReasoningSplitter:
    """Splits the output of one choice into (reasoning, answer). Tags count only at the very beginning of the output."""

    _START, _THINKING, _GAP, _ANSWER = range(4)

    def __init__(self, is_thinking: bool) -> None:
        """`is_thinking`: the prompt ends inside an open `<think>`."""
        self._state = self._THINKING if is_thinking else self._START
        self._held = ""
        self._is_first = True

    def add(self, text: str) -> tuple[str, str]:
        """Return (reasoning, answer) that may be delivered now."""
        if self._state == self._ANSWER:
            return "", text
        text, self._held = self._held + text, ""
        if self._state == self._START:
            return self._at_start(text)
        if self._state == self._THINKING:
            return self._thinking(text)
        return "", self._after_gap(text)

    def finish(self) -> tuple[str, str]:
        """Return what was held back."""
        held, self._held = self._held, ""
        return (held, "") if self._state == self._THINKING else ("", held if self._state == self._START else "")

    def _at_start(self, text: str) -> tuple[str, str]:
        start = text.lstrip()
        if start.startswith(THINK_OPEN):
            self._state = self._THINKING
            return self._thinking(start[len(THINK_OPEN) :])
        if THINK_OPEN.startswith(start) and len(text) < 256:
            self._held = text
            return "", ""
        self._state = self._ANSWER
        return "", text

    def _thinking(self, text: str) -> tuple[str, str]:
        if self._is_first:
            text = text.lstrip("\n")
            self._is_first = not text
        before, tag, after = text.partition(THINK_CLOSE)
        if tag:
            self._state = self._GAP
            return before.rstrip("\n"), self._after_gap(after)
        cut = len(text) - partial_suffix(text, THINK_CLOSE)
        cut = len(text[:cut].rstrip("\n"))
        self._held = text[cut:]
        return text[:cut], ""

    def _after_gap(self, text: str) -> str:
        text = text.lstrip("\n")
        if text:
            self._state = self._ANSWER
        return text
