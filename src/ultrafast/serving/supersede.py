"""Superseding: a newer call of one key ends the older one, so that a client which asks per keystroke does not flood the engine.

A key belongs to one tenant (an API key itself, not its name): nobody can end the calls of others. Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ultrafast.core.errors import SupersededError
from ultrafast.serving.ports import EngineStream

Key = tuple[str, str]
"""(the tenant, the client's key)"""


class Claim:
    """One call's hold on its key, a context; without arguments it holds nothing.

    Attributes:
        is_over: a newer call has come.
    """

    def __init__(self, key: Key | None = None, newest: dict[Key, Claim] | None = None) -> None:
        self._key = key
        self._newest = newest
        self.is_over = False
        self._streams: Sequence[EngineStream] = ()

    def __enter__(self) -> Self:
        if self._newest is not None and self._key is not None:
            older = self._newest.get(self._key)
            self._newest[self._key] = self
            if older is not None:
                older.end()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._newest is not None and self._key is not None and self._newest.get(self._key) is self:
            del self._newest[self._key]

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

    def claim(self, key: Key | None) -> Claim:
        """Be the newest call of a key inside the context that this returns; the call before it ends. None: without a key."""
        return Claim() if key is None else Claim(key, self._newest)
