"""Superseding: a newer call of one key ends the older one, so that a client which asks per keystroke does not flood the engine.

A key belongs to one API key: nobody can end the calls of others. Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ultrafast.core.errors import SupersededError
from ultrafast.serving.ports import EngineStream

Key = tuple[str, str]
"""(name of the API key, the client's key)"""


class Claim:
    """One call's hold on its key.

    Attributes:
        is_over: a newer call has come.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._streams: Sequence[EngineStream] = ()

    def watch(self, streams: Sequence[EngineStream]) -> None:
        """Tell what to abort when a newer call comes."""
        self._streams = streams

    def end(self) -> None:
        """A newer call has come."""
        self.is_over = True
        for stream in self._streams:
            stream.abort()

    def check(self) -> None:
        """Raise SupersededError when a newer call has come."""
        if self.is_over:
            raise SupersededError("A newer request with the same x-supersede-key took the place of this one.")


class Superseding:
    """The newest call of each key."""

    def __init__(self) -> None:
        self._newest: dict[Key, Claim] = {}

    @contextmanager
    def claim(self, key: Key | None) -> Iterator[Claim]:
        """Be the newest call of a key while the body runs; the call before it ends. None: a call without a key."""
        mine = Claim()
        if key is not None:
            older = self._newest.get(key)
            self._newest[key] = mine
            if older is not None:
                older.end()
        try:
            yield mine
        finally:
            if key is not None and self._newest.get(key) is mine:
                del self._newest[key]
