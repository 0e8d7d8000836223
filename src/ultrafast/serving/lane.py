"""A shortcut for the usual delta: from the engine's report to the client's connection in one chain of calls.

    engine report -> EngineStream.push --lane open, reader idle--> choice -> Delta -> chunk -> socket
                                     +--otherwise--> queue -> wake the reader -> events -> chunk -> socket

Waking a task costs several times what a token costs otherwise, and that time is taken from the compute threads of the next step.
The reader of the events gets everything else, and these deltas, too, as soon as one of them cannot be written at once.
"""

from __future__ import annotations

from collections.abc import Callable

from ultrafast.serving.contract import Delta, Placed


class DeltaLane:
    """Made by whoever writes the answer, used by serving while that reader has nothing left to read.

    Attributes:
        is_open: whether a delta could be written at this moment without waiting. The maker may exchange it.
        take: writes it. May only be called at once after `is_open`; what it raises is raised to the reader.
        placed: set by serving once the engine has given the call a place, which may be long before the first event.
    """

    __slots__ = ("is_open", "placed", "take")

    def __init__(self, is_open: Callable[[], bool], take: Callable[[Delta], None]) -> None:
        self.is_open = is_open
        self.take = take
        self.placed: Placed | None = None
