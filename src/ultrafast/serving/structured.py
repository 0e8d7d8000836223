"""Structured output: a JSON schema becomes a grammar that the engine enforces, or the request is refused. Never unconstrained.

Grammars are llguidance's (docs/syntax.md, docs/json_schema.md of the `llguidance` package); its own validator decides before the
engine sees anything. Client schemas cannot loosen it: `x-guidance` inside a schema is overridden.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving.contract import ResponseFormat
from ultrafast.serving.endless_schemas import TooEntangledError, is_endless

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_SCHEMA_CHARS = 32 * 1024
MAX_KEYS = 512
LARGE_SCHEMA_CHARS = 2048
"""From here on compiling takes milliseconds: not on the event loop."""

# One line break with an indent, or one space, or nothing: small models otherwise write white space until they run out of tokens.
_WHITESPACE = r"(\n {0,16}| )?"
JSON_OPTIONS: JsonCompileOptions = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE, "lenient": False}

_UNSATISFIABLE = "Unsatisfiable schema: "
"""How llguidance's validator begins when the schema contradicts itself."""
_HINT_IMPOSSIBLE = "no answer can match this schema; change or remove what contradicts itself"
_HINT_UNSUPPORTED = "leave out what is not supported; the answer would otherwise not be guaranteed to match"


def grammar_for(response_format: ResponseFormat) -> str | None:
    """Return the grammar of a response format, None for free text.

    Raises:
        InvalidRequestError: the schema is malformed, unsupported, too large, or nothing can match it.
    """
    if response_format.kind == "text":
        return None
    schema = {"type": "object"} if response_format.kind == "json_object" else response_format.schema
    if schema is None:
        raise InvalidRequestError("response_format has no schema", param="response_format")
    return _compiled(schema_text(schema, "response_format"))


def is_large(response_format: ResponseFormat) -> bool:
    """Whether `grammar_for` should run on a worker thread."""
    return response_format.schema is not None and len(str(response_format.schema)) > LARGE_SCHEMA_CHARS


def schema_text(schema: dict[str, Any], param: str) -> str:
    """Return a schema as canonical JSON.

    Raises:
        InvalidRequestError: it is too large or too deep to compile in reasonable time.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, ValueError, TypeError) as error:
        raise InvalidRequestError(f"{param}: the schema is not JSON or is nested too deeply", param=param) from error
    if len(text) > MAX_SCHEMA_CHARS:
        raise InvalidRequestError(f"{param}: the schema has {len(text)} characters, the limit is {MAX_SCHEMA_CHARS}", param=param)
    if (num_keys := text.count('":')) > MAX_KEYS:
        raise InvalidRequestError(f"{param}: the schema has about {num_keys} keys, the limit is {MAX_KEYS}", param=param)
    return text


@lru_cache(maxsize=256)
def _compiled(schema: str) -> str:
    check_ends(schema, "response_format")
    try:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
    except ValueError as error:
        raise _bad_schema(str(error), "response_format") from error
    check_grammar(grammar, "response_format")
    return grammar


def check_ends(schema: str, param: str) -> None:
    """Refuse a schema that only infinitely deep values would match; it would cost all tokens and give nothing.

    Raises:
        InvalidRequestError: it is such a schema.
    """
    try:
        endless = is_endless(json.loads(schema))
    except RecursionError as error:
        raise InvalidRequestError(f"{param}: the schema is nested too deeply", param=param) from error
    except TooEntangledError as error:
        raise InvalidRequestError(
            f"{param}: the schema's references lead to each other in too many ways",
            code="invalid_json_schema",
            param=param,
            hint="write out what is referred to, or refer to it by one name",
        ) from error
    if endless:
        raise InvalidRequestError(
            f"{param}: the schema cannot be satisfied: it requires itself again and again, and no value of finite depth matches",
            code="invalid_json_schema",
            param=param,
            hint="let the recursion end: make the recursive property optional, or add an alternative, for example null",
        )


def check_grammar(grammar: str, param: str) -> None:
    """Let llguidance judge a grammar.

    Raises:
        InvalidRequestError: it cannot be enforced as it stands.
    """
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    if is_error:
        raise _bad_schema("; ".join(messages), param)


def _bad_schema(reason: str, param: str) -> InvalidRequestError:
    is_impossible = _UNSATISFIABLE in reason
    what = "cannot be satisfied" if is_impossible else "cannot be enforced"
    return InvalidRequestError(
        f"{param}: the schema {what}: {reason.removeprefix(_UNSATISFIABLE)}"[:600],
        code="invalid_json_schema",
        param=param,
        hint=_HINT_IMPOSSIBLE if is_impossible else _HINT_UNSUPPORTED,
    )
