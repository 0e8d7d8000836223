"""One answer as it streams in, with the times a person wants to see."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ultrafast.cli.http_client import ServerClient


class Answer:
    """Text, token count and times of one answer.

    Times are what this client's stopwatch saw: from sending the request to the arrival of the first and of the last text.
    """

    def __init__(self, on_text: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._on_text = on_text
        self._clock = clock
        self._parts: list[str] = []
        self._start_s = clock()
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._usage: dict[str, Any] = {}
        self._tier: str | None = None
        self._finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def ttft_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self._start_s

    @property
    def tokens_per_s(self) -> float | None:
        """Rate after the first token; None for an answer too short to have one."""
        num_tokens = self._usage.get("completion_tokens", 0)
        if self._first_s is None or self._last_s is None or num_tokens < 2 or self._last_s <= self._first_s:
            return None
        return float((num_tokens - 1) / (self._last_s - self._first_s))

    def add(self, event: dict[str, Any]) -> None:
        """Take in one chunk of the stream."""
        self._usage = event.get("usage") or self._usage
        self._tier = event.get("service_tier") or self._tier
        for choice in event.get("choices", ()):
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = choice.get("delta", {})
            self._add_text((delta.get("reasoning_content") or "") + (delta.get("content") or ""))

    def summary(self) -> str:
        """One line for people."""
        ttft = "no text" if self.ttft_s is None else f"TTFT {self.ttft_s * 1000:.0f} ms"
        rate = "" if self.tokens_per_s is None else f" | {self.tokens_per_s:.1f} tokens/s"
        cached = (self._usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        counts = (
            f" | {self._usage.get('completion_tokens', 0)} tokens | prompt {self._usage.get('prompt_tokens', 0)}, cached {cached}"
        )
        return f"{ttft}{rate}{counts} | tier {self._tier or '?'} | {self._finish_reason or 'unfinished'}"

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs. Times in milliseconds."""
        return {
            "text": self.text,
            "finish_reason": self._finish_reason,
            "service_tier": self._tier,
            "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1000, 3),
            "tokens_per_s": None if self.tokens_per_s is None else round(self.tokens_per_s, 3),
            "usage": self._usage,
        }

    def _add_text(self, text: str) -> None:
        if not text:
            return
        self._last_s = self._clock()
        self._first_s = self._first_s if self._first_s is not None else self._last_s
        self._parts.append(text)
        if self._on_text is not None:
            self._on_text(text)


def receive_answer(client: ServerClient, body: dict[str, Any], answer: Answer) -> None:
    """Send a chat request and feed its stream into `answer`.

    Raises:
        ServerError: the request failed, before or inside the stream.
    """
    for event in client.stream("/v1/chat/completions", body):
        answer.add(event)
