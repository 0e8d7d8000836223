"""Guessing with a second, smaller model: what the scheduler asks of it before a step, and what came of it.

The draft model has KV of its own, with sequence ids of its own. It reads what it does not know yet of a text and then guesses
token by token, all sequences together; the step that follows checks the guesses like any others (`SequenceWork.drafts`):

    text       t0 t1 ... t40 t41 t42            draft sequence holds t0 ... t40, and perhaps wrong guesses behind
    DraftItem  start = 41, tokens = (t41, t42)  forget everything from 41 on, read these
    pass 1     (t41 t42) -> d0                  every pass reads what the one before it guessed,
    pass 2     (d0)      -> d1                  so the last guess is never read:
    after it   the draft sequence holds t0 ... t42 d0
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftItem:
    """Bring one draft sequence up to date, and guess.

    Attributes:
        seq_id: of the draft model's own KV.
        start: what the sequence holds from here on is forgotten first.
        tokens: read at positions [start, start + len(tokens)); at least one.
        max_drafts: guess at most so many tokens after them; 0 = only read.
        output_index: output tokens before the first guess, for the random number of each.
    """

    request_id: str
    seq_id: int
    start: int
    tokens: tuple[int, ...]
    max_drafts: int = 0
    output_index: int = 0


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What to do before a step. `freed`: sequences to empty, before anything else."""

    freed: tuple[int, ...] = ()
    items: tuple[DraftItem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.freed or self.items)


NO_DRAFTING = DraftPlan()


@dataclass(frozen=True, slots=True)
class DraftPass:
    """One forward pass of the draft model over so many tokens, drawing included."""

    num_tokens: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class DraftResult:
    """What came of a `DraftPlan`.

    Attributes:
        drafts: (request_id, guesses) of the items that wanted some: perhaps fewer than asked for (the text would end), perhaps
            none. Nothing behind a guess that ends the text is guessed, nor that one itself.
        passes: in order.
        duration_s: wall time of all of it.
        is_broken: the draft model cannot be used any more; nothing was guessed.
    """

    drafts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    passes: tuple[DraftPass, ...] = ()
    duration_s: float = 0.0
    is_broken: bool = False
