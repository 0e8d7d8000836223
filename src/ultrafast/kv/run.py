"""A run: the KV of some consecutive tokens outside the device, in host memory, on disk or both.

    tokens     |0 ............. 128|128 ........... 256|256 .... 300|      runs of RUN_TOKENS, the last one as long as it is
    runs       |        A          |         B         |     C      |      parent of B is A's digest

Runs are cut on a fixed grid, so that equal prompts give equal runs whatever their rest; only the last run of a sequence is
shorter, and then nothing follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RUN_TOKENS = 128
"""Tokens per run: four blocks. Small enough that moving one does not hold up a step, large enough for a file of its own."""


class Place(StrEnum):
    """Where a run stands on one level. Bytes of that level are charged in every state but ABSENT."""

    ABSENT = "absent"
    ARRIVING = "arriving"
    PRESENT = "present"


class Run:
    """Mutable record of a run; owned by `KvLevels`.

    Attributes:
        run_id: never used twice; a completion that names an unknown one is stale and ignored.
        parent, digest: of all tokens before it, and of those with its own.
        start: position of its first token.
        num_bytes: measured once it was written, estimated from above before.
        num_pins: transfers and requests that need it; a pinned run is not evicted.
        num_hits: how often it was reused.
        is_kept: never evicted by value or age (a pinned prompt).
        is_private: of one request only (KV moved away under pressure): never written to disk.
    """

    __slots__ = (
        "digest",
        "disk",
        "host",
        "is_kept",
        "is_private",
        "last_used_s",
        "num_bytes",
        "num_hits",
        "num_pins",
        "parent",
        "run_id",
        "start",
        "tokens",
    )

    def __init__(self, run_id: int, parent: bytes, digest: bytes, start: int, tokens: tuple[int, ...], num_bytes: int) -> None:
        self.run_id = run_id
        self.parent = parent
        self.digest = digest
        self.start = start
        self.tokens = tokens
        self.num_bytes = num_bytes
        self.host = Place.ABSENT
        self.disk = Place.ABSENT
        self.num_pins = 0
        self.num_hits = 0
        self.last_used_s = 0.0
        self.is_kept = False
        self.is_private = False

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_usable(self) -> bool:
        """Its bytes are, or will be, in host memory, or can be read from disk."""
        return self.host is not Place.ABSENT or self.disk is Place.PRESENT


@dataclass(frozen=True, slots=True)
class Missing:
    """Tokens [begin, end) of a sequence, after `parent`, which no level outside the device has."""

    parent: bytes
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run that was found on disk at the start. `age_s`: since it was last used."""

    parent: bytes
    digest: bytes
    start: int
    tokens: tuple[int, ...]
    num_bytes: int
    age_s: float = 0.0
