"""Reads which series and labels a PromQL expression names. A tokenizer, not a parser: `promtool` checks the grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")
      | (?P<range>\[[^\]]*\])
      | (?P<number>\d[\w.]*)
      | (?P<name>[a-zA-Z_:][\w:]*)
      | (?P<op>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])
      | (?P<space>\s+)""",
    re.VERBOSE,
)
_GROUPINGS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset"}


@dataclass(frozen=True)
class Matcher:
    """`label op "value"`."""

    label: str
    op: str
    value: str


@dataclass(frozen=True)
class Selector:
    """A metric, or a recorded series, with its label matchers."""

    name: str
    matchers: tuple[Matcher, ...]


@dataclass(frozen=True)
class Named:
    """What an expression names: series, and labels in `by (...)` and its like."""

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]


def tokens(expr: str) -> list[str]:
    found = []
    position = 0
    while position < len(expr):
        match = _TOKEN.match(expr, position)
        assert match, f"not PromQL at {expr[position:]!r}"
        position = match.end()
        if match.lastgroup != "space":
            found.append(match.group())
    return found


def read(expr: str) -> Named:
    selectors: list[Selector] = []
    grouped: set[str] = set()
    words = iter(tokens(expr))
    word = next(words, None)
    while word is not None:
        following = next(words, None)
        if not re.match(r"[a-zA-Z_:]", word) or word in _WORDS:
            word = following
        elif word in _GROUPINGS:
            if following == "(":
                grouped |= {label for label in _until(words, ")") if label != ","}
                following = next(words, None)
            word = following
        elif following == "(":  # a function or an aggregation
            word = next(words, None)
        elif following == "{":
            selectors.append(Selector(word, tuple(_matchers(_until(words, "}")))))
            word = next(words, None)
        elif following in _GROUPINGS and word in ("sum", "avg", "min", "max", "count"):
            word = following
        else:
            selectors.append(Selector(word, ()))
            word = following
    return Named(tuple(selectors), frozenset(grouped))


def _until(words: Iterator[str], end: str) -> list[str]:
    inside = []
    for word in words:
        if word == end:
            return inside
        inside.append(word)
    raise AssertionError(f"no {end}")


def _matchers(words: list[str]) -> Iterator[Matcher]:
    parts = [word for word in words if word != ","]
    assert len(parts) % 3 == 0, parts
    for label, op, value in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        yield Matcher(label, op, value[1:-1])
