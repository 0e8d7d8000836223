"""What serving needs of its neighbours: a tokenizer and an engine. Both are given to it; it never chooses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from ultrafast.core.events import Event
from ultrafast.core.request import Request
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.options import EngineFacts


class Tokenizer(Protocol):
    """The vocabulary of the served model. All methods may be called from any thread.

    Attributes:
        size: number of token ids; valid ids are [0, size).
        pieces: token id -> the exact bytes it adds to generated text; b"" for control tokens.
        adds_bos: whether the model expects `bos` in front of every prompt.
        chat_template: Jinja source out of the model's own metadata, None where it has none.
    """

    @property
    def size(self) -> int: ...
    @property
    def pieces(self) -> Sequence[bytes]: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to token ids. `parse_special` turns the text of control tokens into these tokens: for trusted text only.

        Raises:
            InvalidRequestError: the text would take too long.
        """
        ...

    def special_text(self, token: int) -> str:
        """The text of a token, control tokens spelled out ("<|im_end|>")."""
        ...


class EngineStream(Protocol):
    """The events of one request, in batches that grow when the reader is slow. Ends after `RequestFinished`.

    Attributes:
        shortcut: shown an event that comes while the reader waits for one; True = dealt with, the reader does not get it.
        output_tokens: every token that came so far; to be read only.
        is_counted: set it when fewer tokens may be delivered than come; `num_delivered` then says how many, before the end.
    """

    is_counted: bool
    num_delivered: int | None

    shortcut: Callable[[Event], bool] | None

    @property
    def output_tokens(self) -> Sequence[int]: ...

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]: ...

    def stop(self) -> None:
        """End the request because its answer is complete; otherwise as `abort`."""
        ...

    def abort(self) -> None:
        """End the request. Synchronous and idempotent; does nothing once it has finished."""
        ...


class EnginePort(Protocol):
    """The engine as serving sees it."""

    @property
    def facts(self) -> EngineFacts:
        """What the engine really got; valid once it is ready."""
        ...

    def looks_full(self, tier: ServiceTier, *, wholly: bool = False) -> bool:
        """Whether a request of this tier may be refused for want of room, so that asking first (`is_inquiry`) is worth it.

        `wholly`: whether it probably will be, by what was submitted so far.
        """
        ...

    def submit(self, request: Request) -> EngineStream:
        """Hand a request over. From then on exactly one `RequestFinished` comes.

        Raises:
            UnavailableError: the engine cannot take requests now.
        """
        ...
