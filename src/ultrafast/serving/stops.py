"""Stop strings in a stream: nothing of a stop string is ever delivered, wherever the chunk borders fall.

A match that ends first wins; of those that end at the same character, the longest, so that nothing of either is delivered.
One Aho-Corasick automaton per call (Aho and Corasick, "Efficient string matching", CACM 18(6), 1975) walks every character once:
what may still become a stop string is exactly the automaton's current depth, so that much is held back and no more.

        "...the answer is 42 ##"   +   "# next"
                             ^^ held back (prefix of "###")
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopAutomaton:
    """The compiled stop strings of a call, shared by its choices. Immutable.

    Attributes:
        first_chars: characters that a match can begin with; text without any of them passes unread.
    """

    __slots__ = ("depth", "edges", "fail", "first_chars", "match")

    def __init__(self, stops: Sequence[str]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.match: list[str | None] = [None]
        self.fail = [0]
        for stop in stops:
            if stop:
                self._insert(stop)
        self._link()
        self.first_chars = frozenset(self.edges[0])

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self.edges[state].get(char)
            if following is None:
                following = len(self.edges)
                self.edges.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
                self.fail.append(0)
                self.edges[state][char] = following
            state = following
        self.match[state] = stop

    def _link(self) -> None:
        queue = deque(self.edges[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.edges[state].items():
                self.fail[child] = self.step(self.fail[state], char)
                # A state's own match is longer than any that its suffixes contain.
                self.match[child] = self.match[child] or self.match[self.fail[child]]
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        """Return the state after one more character."""
        while True:
            following = self.edges[state].get(char)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self.fail[state]


class StopFilter:
    """Holds back what may become a stop string. One per choice.

    Attributes:
        matched: the stop string that was found, None so far.
    """

    __slots__ = ("_automaton", "_held", "_state", "matched")

    def __init__(self, automaton: StopAutomaton) -> None:
        self._automaton = automaton
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str, *, may_match: bool = True) -> str:
        """Return the text that may be delivered now. After a match: what stood in front of it, and "" for ever after.

        `may_match` false: a stop string that ends within this text is output like any other; one that begins in it may count.
        """
        if self.matched is not None:
            return ""
        automaton = self._automaton
        if self._state == 0 and automaton.first_chars.isdisjoint(text):
            return text
        pending = self._held + text
        state = self._state
        for position, char in enumerate(text, len(self._held) + 1):
            state = automaton.step(state, char)
            match = automaton.match[state] if may_match else None
            if match is not None:
                self.matched = match
                self._held = ""
                return pending[: position - len(match)]
        while not may_match and state and not automaton.edges[state]:
            state = automaton.fail[state]  # a whole stop string that did not count is no beginning of one
        self._state = state
        cut = len(pending) - automaton.depth[state]
        self._held = pending[cut:]
        return pending[:cut]

    def finish(self) -> str:
        """Return what was held back: the output ended before it became a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
