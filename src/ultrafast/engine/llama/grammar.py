"""Structured output: which tokens a grammar admits next, as a bit mask over the vocabulary.

llguidance computes the mask from the grammar's state, so a token outside the grammar is never drawn and nothing can be "accepted"
that does not fit: unlike a GBNF sampler inside libllama, an error here is a value and not an abort of the process.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt

from ultrafast.core.errors import InvalidRequestError
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.vocab import Vocab

# The library's own words describe its inner state at length, schema and output included: nothing for a client.
_STUCK = "the schema admits no further output: it cannot be satisfied, or it is too complex to follow"
_NOTHING_FITS = "NoExtensionBias"
"""How the library's error begins when it followed the grammar and found nothing that may come; all others are its limits."""
_IMPOSSIBLE = "response_format: the schema cannot be satisfied: it admits no output at all"
_TOO_COMPLEX = (
    "response_format: the schema cannot be enforced: too many of its alternatives are open at once where an answer begins; "
    "use fewer of them (anyOf, oneOf, optional properties, patterns), above all in allOf, or write out which belong together"
)


class GrammarCompiler:
    """Builds matchers for one vocabulary. `matcher` may be called from any thread."""

    def __init__(self, library: abi.Library, vocab: Vocab) -> None:
        self._library = library
        self._vocab = vocab

    @cached_property
    def _tokenizer(self) -> Any:
        # About 0.15 s for a vocabulary of 49k: built at warm-up, not for the first request.
        return llguidance.LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # missing in its stub
            tokens=self._vocab.grammar_pieces(),
            vocab_ptr=int(abi.ffi.cast("uintptr_t", self._vocab.handle)),
            tokenize_fptr=int(abi.ffi.cast("uintptr_t", abi.ffi.addressof(self._library.c, "llama_tokenize"))),
            eos_token=sorted(self._vocab.end_tokens),
        )

    def matcher(self, grammar: str) -> GrammarMatcher:
        """Compile a grammar and find what may come first; may take up to a second for a very large one.

        Raises:
            InvalidRequestError: it does not compile, is too complex to follow, or no output satisfies it.
        """
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise InvalidRequestError(
                f"the grammar does not compile: {matcher.get_error()[:200]}",
                code="invalid_json_schema",
                param="response_format",
            )
        started = GrammarMatcher(matcher, self._vocab.size)
        try:
            reason = _IMPOSSIBLE if started.forbidden().all() else None
        except GrammarError:
            reason = _IMPOSSIBLE if matcher.get_error().startswith(_NOTHING_FITS) else _TOO_COMPLEX
        if reason is not None:
            raise InvalidRequestError(reason, code="invalid_json_schema", param="response_format")
        return started


class GrammarMatcher:
    """The state of one grammar along one output."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._mask = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
        self._vocab_size = vocab_size
        self._forbidden: npt.NDArray[np.bool_] | None = None

    def forbidden(self) -> npt.NDArray[np.bool_]:
        """True for each token id that must not come next. Raises GrammarError when the grammar hit a limit."""
        if self._forbidden is not None:
            return self._forbidden
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask)
        if self._matcher.is_error():
            raise GrammarError(_STUCK)
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little", count=self._vocab_size)
        self._forbidden = cast("npt.NDArray[np.bool_]", bits == 0)
        return self._forbidden

    def accept(self, token: int) -> None:
        """Move on by one token that the mask admitted."""
        self._forbidden = None
        if not self._matcher.consume_token(token):
            raise GrammarError(_STUCK)

    @property
    def is_complete(self) -> bool:
        """The output satisfies the grammar and nothing more may follow."""
        return bool(self._matcher.is_stopped())


class GrammarError(Exception):
    """A grammar hit a limit or admits nothing; the request fails, the engine goes on."""
