from __future__ import annotations

import pytest

from ultrafast.serving.reasoning import ReasoningSplitter

CASES = [
    (False, "<think>\nwhy\n</think>\n\nbecause", "why", "because"),
    (False, "\n<think>why</think>because", "why", "because"),
    (False, "because <think>x</think>", "", "because <think>x</think>"),
    (False, "<thin air", "", "<thin air"),
    (False, "<thi", "", "<thi"),
    (False, "<think>cut off", "cut off", ""),
    (False, "<think>a\n\nb < c</thi</think>d", "a\n\nb < c</thi", "d"),
    (True, "why\n</think>\n\nbecause\n\n", "why", "because\n\n"),
    (True, "\n\nwhy", "why", ""),
    (True, "why</think>", "why", ""),
    (False, "", "", ""),
]


@pytest.mark.parametrize(("is_thinking", "text", "reasoning", "answer"), CASES)
def test_whole_and_by_character(is_thinking: bool, text: str, reasoning: str, answer: str) -> None:
    for chunks in ([text], list(text)):
        splitter = ReasoningSplitter(is_thinking)
        parts = [splitter.add(chunk) for chunk in chunks]
        parts.append(splitter.finish())
        assert "".join(part[0] for part in parts) == reasoning
        assert "".join(part[1] for part in parts) == answer
