"""The model's chat template, rendered as Hugging Face renders it, in a sandbox.

The template is the operator's program, the messages are a client's data. The sandbox keeps either from reaching Python; output
and time are bounded between two output expressions, which is as far as Jinja lets itself be interrupted.

Source of the conventions: transformers, `utils/chat_template_utils.py` (`_compile_jinja_template`): trim_blocks, lstrip_blocks,
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, the loop controls extension, `{% generation %}` blocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, new_context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ultrafast.core.errors import InvalidRequestError, ModelFileError

MAX_PROMPT_CHARS = 16 * 1024 * 1024
MAX_RENDER_S = 5.0
_PIECES_PER_CHECK = 64
_LOOP_FIGURES = frozenset({"first", "last", "index", "index0", "length", "revindex", "revindex0", "depth", "depth0"})


class _GenerationTag(Extension):
    """`{% generation %}` marks training targets; for inference it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateRaisedError(Exception):
    """The template called `raise_exception`."""


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRaisedError(str(message))


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    # Local wall time, as in transformers: models are trained on the date that a user would name.
    return datetime.now().astimezone().strftime(pattern)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for what nearly every template asks for."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`loop.first` and the like: numbers and flags of Jinja's own, which the sandbox lets pass after a dozen questions."""
        if type(obj) is LoopContext and attribute in _LOOP_FIGURES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled chat template. Immutable; any thread may render.

    Attributes:
        source: the Jinja source.
        literals: every string constant in the template's expressions: what the template can look for in a message.
    """

    def __init__(
        self, source: str, *, bos_text: str = "", eos_text: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Compile a template. `bos_text` and `eos_text` are what it sees as `bos_token` and `eos_token`.

        Raises:
            ModelFileError: the source is not a Jinja template.
        """
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(
                f"the chat template does not compile: {error.message} (line {error.lineno})",
                hint="set model.chat_template_file to a corrected template",
            ) from error
        self.source = source
        self.literals = frozenset(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
        # Merged into every context here: Jinja's own way of doing so takes as long as all the rest of a short rendering.
        self._globals = dict(self._template.globals)
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}
        self._clock = clock

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: dict[str, Any] | None = None,
    ) -> str:
        """Return the prompt text of a conversation.

        Raises:
            InvalidRequestError: the template refused the conversation, failed on it, or its output is too long.
        """
        context = {
            **self._globals,
            **(extra or {}),
            **self._tokens,
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._collect(context)
        except InvalidRequestError:
            raise
        except _TemplateRaisedError as error:
            raise InvalidRequestError(f"the model's chat template refused the messages: {error}", param="messages") from error
        except Exception as error:  # Boundary: a template is a foreign program and may fail in any way on a client's data.
            raise InvalidRequestError(
                f"the model's chat template failed on these messages: {type(error).__name__}: {error}"[:500],
                param="messages",
                hint="check the roles, their order and the fields of each message",
            ) from error

    def _collect(self, context: dict[str, Any]) -> str:
        deadline = self._clock() + MAX_RENDER_S
        pieces: list[str] = []
        num_chars = 0
        template = self._template
        for piece in template.root_render_func(
            new_context(template.environment, template.name, template.blocks, context, shared=True)
        ):
            pieces.append(piece)
            num_chars += len(piece)
            if num_chars > MAX_PROMPT_CHARS:
                raise InvalidRequestError(f"the rendered prompt is longer than {MAX_PROMPT_CHARS} characters", param="messages")
            if len(pieces) % _PIECES_PER_CHECK == 0 and self._clock() > deadline:
                raise InvalidRequestError(f"rendering the chat template took longer than {MAX_RENDER_S:g} s", param="messages")
        return "".join(pieces)
