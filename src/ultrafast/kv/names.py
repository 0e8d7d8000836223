"""Names of prompt beginnings that say nothing of the prompts: for logs, and for finding them again.

    n1 = H(key, tokens [0, 128))      n2 = H(key, n1, tokens [128, 256))      ...

A keyed hash: without the key, which never leaves the machine, nobody can test whether a guessed text is behind a name. Like the
digests of `kv.digest` each name stands for all tokens before it, but it knows neither model nor tenant, and never opens a cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from ultrafast.kv.run import RUN_TOKENS

NAME_BYTES = 8
KEY_BYTES = 32


class PrefixNames:
    """Gives names under one key of `KEY_BYTES`."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES, f"a key has {KEY_BYTES} bytes"
        self._key = key

    def of(self, tokens: Sequence[int]) -> list[str]:
        """Names of the beginnings of 128, 256, ... tokens; what fills no whole run has none. O(len(tokens))."""
        names: list[str] = []
        name = b""
        for begin in range(0, len(tokens) - RUN_TOKENS + 1, RUN_TOKENS):
            name = self.after(name, tokens[begin : begin + RUN_TOKENS])
            names.append(name.hex())
        return names

    def after(self, name: bytes, tokens: Sequence[int]) -> bytes:
        """The name of what `name` stands for (b"": nothing) and the tokens that follow it."""
        data = name + array("q", tokens).tobytes()
        return blake2b(data, key=self._key, digest_size=NAME_BYTES, person=b"prefix-name").digest()

    def of_space(self, space: str) -> str:
        """A name for whose KV is shared with whom; the empty space has the empty name."""
        if not space:
            return ""
        return blake2b(space.encode("utf-8", "surrogatepass"), key=self._key, digest_size=4, person=b"space-name").hexdigest()
