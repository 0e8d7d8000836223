r"""From messages to tokens: render, cut at the template's control tokens, tokenise what is new.

    messages --normalise--> template --provenance--> items --segments--> tokens
                                                     |<|im_start|>|user\nHi|<|im_end|>|...

The result equals tokenising the rendered text as a whole with special tokens parsed, except that control tokens in a *client's*
text stay text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving import messages as shapes
from ultrafast.serving.chat_format import ChatFormat, probe
from ultrafast.serving.control_tokens import ControlTokens, Item
from ultrafast.serving.ports import Tokenizer
from ultrafast.serving.provenance import Provenance, Rendered
from ultrafast.serving.segments import SegmentCache, SegmentStats, SegmentTokenizer
from ultrafast.serving.template import ChatTemplate
from ultrafast.serving.words import WordTokenizer

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
_MAX_EXTRA_NUMBER = 10_000
_WORDS_SHARE = 8
"""Words get this part of what the segments get, on top of it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What goes into a chat prompt. `tools` are only those that the template is to show."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    add_generation_prompt: bool = True
    template_kwargs: Mapping[str, Any] | None = None


class PromptBuilder:
    """Builds prompts for one model. Any thread may call; immutable but for its bounded cache.

    Attributes:
        format: what the chat template can do; None when the model has no template.
    """

    def __init__(self, tokenizer: Tokenizer, template_source: str | None = None, cache: SegmentCache | None = None) -> None:
        """`template_source` replaces the model's own template.

        Raises:
            ModelFileError: the template does not compile.
        """
        self._tokenizer = tokenizer
        self._control = ControlTokens(tokenizer)
        self._cache = cache or SegmentCache()
        words = WordTokenizer(tokenizer, self._cache.max_bytes // _WORDS_SHARE)
        self._segments = SegmentTokenizer(tokenizer, self._control, self._cache, words)
        source = template_source or tokenizer.chat_template
        self._template: ChatTemplate | None = None
        self.format: ChatFormat | None = None
        if source is not None:
            self._template = ChatTemplate(
                source, bos_text=_special(tokenizer, tokenizer.bos), eos_text=_special(tokenizer, tokenizer.eos)
            )
            self.format = probe(self._template)
            self._provenance = Provenance(self._control, self._template.literals)

    @property
    def cache_stats(self) -> SegmentStats:
        return self._cache.stats

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Text -> id of the vocabulary's control tokens."""
        return self._control.ids

    def require_format(self) -> ChatFormat:
        """Return the chat format.

        Raises:
            InvalidRequestError: the model has no chat template.
        """
        if self.format is None:
            raise InvalidRequestError(
                "this model has no chat template",
                param="messages",
                hint="use /v1/completions, or start the server with model.chat_template_file",
            )
        return self.format

    def render(self, conversation: Conversation) -> Rendered:
        """Return the prompt text, cut at control tokens.

        Raises:
            InvalidRequestError: no template, messages of the wrong shape, or the template refuses them.
        """
        chat_format = self.require_format()
        template = self._template
        assert template is not None, "a chat format without a template"
        template_kwargs = conversation.template_kwargs
        values = {
            "messages": shapes.normalise(
                conversation.messages, knows_developer=chat_format.knows_developer, wants_parts=chat_format.wants_parts
            ),
            "tools": conversation.tools,
            "extra": _checked_extra(template_kwargs) if template_kwargs else {},
        }
        if conversation.tools:
            shapes.check_depth(conversation.tools, "tools")

        def render(given: dict[str, Any]) -> str:
            return template.render(
                given["messages"],
                tools=given["tools"],
                add_generation_prompt=conversation.add_generation_prompt,
                extra=given["extra"],
            )

        return self._provenance.render(values, render)

    def warm_up(self) -> None:
        """Render and tokenise a short conversation, so that the first request finds the template's rules learnt.

        Raises:
            InvalidRequestError: the model's template or tokenizer refuses even that; so will it most requests.
        """
        if self.format is not None:
            turns = [{"role": role, "content": "Hi."} for role in ("user", "assistant", "user")]
            self.tokens(self.render(Conversation(turns, [])).items)

    def num_uncached_chars(self, items: list[Item]) -> int:
        """Return how much text `tokens` would have to tokenise."""
        return self._segments.num_uncached_chars(items)

    def tokens(self, items: list[Item]) -> list[int]:
        """Return the tokens of a rendered prompt.

        Raises:
            InvalidRequestError: a client's text cannot be tokenised as mere text.
        """
        return self._segments.tokens(items)

    def text_tokens(self, text: str) -> list[int]:
        """Return the tokens of a completion prompt: the client wrote all of it, so control tokens in it are meant."""
        return self._tokenizer.tokenize(text, add_special=True, parse_special=True)


def _special(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.special_text(token)


def _checked_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    shapes.check_depth(dict(extra), "chat_template_kwargs")
    for name, value in extra.items():
        if name in _OWN_VARIABLES or not name.isidentifier():
            raise InvalidRequestError(f"chat_template_kwargs cannot set {name!r}", param="chat_template_kwargs")
        if isinstance(value, int | float) and abs(value) > _MAX_EXTRA_NUMBER:
            # A template may multiply by it; nothing real needs more.
            raise InvalidRequestError(f"chat_template_kwargs.{name} is out of range", param="chat_template_kwargs")
    return dict(extra)
