"""The model's vocabulary without its weights: text to tokens, tokens to exact bytes, special tokens, metadata.

Loaded once per process. All methods may be called from any thread: `llama_tokenize` is thread-safe and the rest is read
when the file is opened.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ultrafast.core.errors import ModelFileError
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.collected_log import CollectedLog
from ultrafast.engine.llama.special_texts import MAX_PER_PART, SpecialTexts

_PIECE_BYTES = 1024
_UNKNOWN, _CONTROL, _USER_DEFINED, _LSTRIP, _RSTRIP = (1 << bit for bit in (0, 3, 4, 7, 8))
"""Of enum llama_token_attr."""
_SPM, _BPE, _UGM = 1, 2, 4
"""Of enum llama_vocab_type: those that generate, and whose special tokens have texts as they stand."""


class Vocab:
    """Vocabulary of one GGUF file.

    Attributes:
        size: number of token ids; valid ids are [0, size).
        pieces: token id -> the bytes it adds to generated text; b"" for control tokens. Bytes, not text: one character may
            be spread over several tokens.
        bos, eos, eot: token ids, None where the model has none.
        adds_bos: whether the model expects a beginning-of-sequence token in front of every prompt.
        metadata: every metadata value of the file as text (arrays shortened by libllama).
        chat_template: Jinja source, None where the file has none.
    """

    def __init__(self, library: abi.Library, model: Any, owns_model: bool) -> None:
        self._c = library.c
        self._model = model
        self._owns_model = owns_model
        self._vocab = self._c.llama_model_get_vocab(model)
        self.size: int = self._c.llama_vocab_n_tokens(self._vocab)
        self.pieces: Sequence[bytes] = tuple(self._piece(token, special=False) for token in range(self.size))
        self.bos = self._token_or_none(self._c.llama_vocab_bos(self._vocab))
        self.eos = self._token_or_none(self._c.llama_vocab_eos(self._vocab))
        self.eot = self._token_or_none(self._c.llama_vocab_eot(self._vocab))
        self.adds_bos = bool(self._c.llama_vocab_get_add_bos(self._vocab))
        self.metadata: Mapping[str, str] = read_metadata(self._c, model)
        self.chat_template = self._read_template()
        self.end_tokens = frozenset(t for t in range(self.size) if self._c.llama_vocab_is_eog(self._vocab, t))

    @classmethod
    def load(cls, model_path: str, libllama_path: str | None = None) -> Vocab:
        """Open the vocabulary of a GGUF file; takes about 0.2 s.

        Raises:
            ModelFileError: libllama cannot read the file's vocabulary, or does not know its architecture.
            ConfigError: no usable libllama.
        """
        library = abi.load(libllama_path)
        with CollectedLog() as errors:
            model = _load_vocabulary(library, model_path)
        if model == abi.ffi.NULL:
            raise _unreadable(model_path, errors.text())
        return cls(library, model, owns_model=True)

    def reloaded(self, model_path: str, libllama_path: str | None = None) -> Vocab:
        """The same vocabulary, read by libllama from its file again. What was derived from it in Python is shared.

        To be closed by the caller. Raises what `load` raises.
        """
        again = copy.copy(self)
        again._model = _load_vocabulary(abi.load(libllama_path), model_path)
        if again._model == abi.ffi.NULL:
            raise _unreadable(model_path, "it could be read before")
        again._vocab = self._c.llama_model_get_vocab(again._model)
        again._owns_model = True
        return again

    @classmethod
    def of_model(cls, library: abi.Library, model: Any) -> Vocab:
        """The vocabulary of a model that is loaded already and that stays the caller's."""
        return cls(library, model, owns_model=False)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Turn text into token ids.

        Args:
            text: any text; lone surrogates become question marks.
            add_special: put the model's BOS/EOS where it expects them.
            parse_special: True turns the text of control tokens (`<|im_end|>`) into these tokens: only for trusted text.

        Raises:
            InvalidRequestError: very many special tokens that run into each other.
        """
        data = text.encode("utf-8", "replace")
        if len(data) <= MAX_PER_PART:
            return self._tokens(data, add_special, parse_special)
        parts = self._special_texts[parse_special].parts(data)
        if len(parts) == 1:
            return self._tokens(data, add_special, parse_special)
        tokens = self._tokens(parts[0], False, parse_special)
        for part in parts[1:]:
            tokens += self._tokens(part, False, parse_special)[1:]
        if not add_special:
            return tokens
        around = self._tokens(b"", True, parse_special)
        return around[: self.adds_bos] + tokens + around[self.adds_bos :]

    def _tokens(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        capacity = len(data) + 8
        buffer = abi.ffi.new("llama_token[]", capacity)
        count = self._c.llama_tokenize(self._vocab, data, len(data), buffer, capacity, add_special, parse_special)
        if count < 0:
            capacity = -count
            buffer = abi.ffi.new("llama_token[]", capacity)
            count = self._c.llama_tokenize(self._vocab, data, len(data), buffer, capacity, add_special, parse_special)
        assert count >= 0, f"llama_tokenize wants {-count} tokens after asking for {capacity}"
        return list(abi.ffi.unpack(buffer, count)) if count else []

    def special_text(self, token: int) -> str:
        """The text of a token with control tokens spelled out, for example "<|im_end|>"."""
        return self._piece(token, special=True).decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        """Whether this token ends a generation."""
        return token in self.end_tokens

    def is_control(self, token: int) -> bool:
        """Whether this token is a control token, which never appears in text."""
        return bool(self._c.llama_vocab_is_control(self._vocab, token))

    def grammar_pieces(self) -> list[bytes]:
        """Bytes of each token id, control tokens marked by a leading 0xFF, as llguidance expects them."""
        return [b"\xff" + self._piece(t, special=True) if self.is_control(t) else self.pieces[t] for t in range(self.size)]

    @cached_property
    def _special_texts(self) -> tuple[SpecialTexts, SpecialTexts]:
        """What libllama looks for in mere text, and in text whose control tokens are parsed."""
        if self._c.llama_vocab_type(self._vocab) not in (_SPM, _BPE, _UGM):
            return SpecialTexts(()), SpecialTexts(())
        attributes = [self._c.llama_vocab_get_attr(self._vocab, token) for token in range(self.size)]
        is_stripping = any(attribute & (_LSTRIP | _RSTRIP) for attribute in attributes)

        def texts(kinds: int, but: int = 0) -> SpecialTexts:
            tokens = (token for token, kind in enumerate(attributes) if kind & kinds and not kind & but)
            return SpecialTexts([self._piece(token, special=True) for token in tokens], is_stripping=is_stripping)

        return texts(_USER_DEFINED, but=_CONTROL | _UNKNOWN), texts(_USER_DEFINED | _CONTROL | _UNKNOWN)

    @property
    def handle(self) -> Any:
        """The C vocabulary, for the engine's own samplers."""
        return self._vocab

    def close(self) -> None:
        """Free the vocabulary. No method may be called after this."""
        if self._owns_model:
            self._c.llama_model_free(self._model)
            self._owns_model = False

    def _piece(self, token: int, special: bool) -> bytes:
        buffer = abi.ffi.new("char[]", _PIECE_BYTES)
        length = self._c.llama_token_to_piece(self._vocab, token, buffer, _PIECE_BYTES, 0, special)
        if length < 0:
            buffer = abi.ffi.new("char[]", -length)
            length = self._c.llama_token_to_piece(self._vocab, token, buffer, -length, 0, special)
        return bytes(abi.ffi.buffer(buffer, length))

    def _token_or_none(self, token: int) -> int | None:
        return token if token >= 0 else None

    def _read_template(self) -> str | None:
        template = self._c.llama_model_chat_template(self._model, abi.ffi.NULL)
        return None if template == abi.ffi.NULL else abi.ffi.string(template).decode("utf-8", "replace")


def _load_vocabulary(library: abi.Library, model_path: str) -> Any:
    params = library.c.llama_model_default_params()
    params.vocab_only = True
    return library.c.llama_model_load_from_file(str(model_path).encode(), params)


def _unreadable(model_path: str, reason: str) -> ModelFileError:
    return ModelFileError(
        f"libllama cannot read the vocabulary of {model_path}: {reason}",
        hint=f"the file may be damaged, or of an architecture that llama.cpp {abi.PINNED_BUILD} does not know",
    )


def read_metadata(c: Any, model: Any) -> dict[str, str]:
    """Every metadata key and value of a model as text."""
    return {
        _read_string(c.llama_model_meta_key_by_index, model, i): _read_string(c.llama_model_meta_val_str_by_index, model, i)
        for i in range(c.llama_model_meta_count(model))
    }


def _read_string(function: Any, model: Any, index: int) -> str:
    # Both functions behave like snprintf: they return the length that the whole text needs.
    length = function(model, index, abi.ffi.NULL, 0)
    if length <= 0:
        return ""
    buffer = abi.ffi.new("char[]", length + 1)
    function(model, index, buffer, length + 1)
    return bytes(abi.ffi.string(buffer)).decode("utf-8", "replace")
