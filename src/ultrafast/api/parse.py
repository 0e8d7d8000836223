"""Request bodies to structs. Every mistake becomes a 400 that names the field, what it may be and what was given.

Never fails otherwise, whatever the bytes: broken UTF-8, lone surrogates, endless nesting, numbers beyond any range (these are
infinite here; in a field that nobody reads they harm nobody).

Runs on the event loop: a parser keeps the interpreter's lock, so that a thread would hold up the loop as well. So no step may
take Python code for each of a million values.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from ultrafast.api.allowed import ANY_VALUE, allowed_at, inside
from ultrafast.api.errors import ApiError, describe, lower_case_hint

MAX_DEPTH = 100
MAX_CONTAINERS = 100_000
"""Lists and objects in a body: as many as fit into it take more than a second to make."""
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_QUOTED = re.compile(r'"([^"]+)"')
_OUT_OF_RANGE = "out of range"
_MAX_DIGITS = 400
"""More than any float has; reading an integer takes time by the square of its digits."""
_INFINITE = b"1e999"
_TOO_LONG = b"0" * (_MAX_DIGITS + 1)
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_DIGITS = re.compile(rb"[0-9]++")
_INTEGER = re.compile(rb"(?<![.eE+])(?<![eE]-)[0-9]++(?![.eE])")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Also one that does not end: a search that fails would begin again at each of its quotes."""
_HALF_PAIR_AT_END = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\"[^\"]{0,4}\Z")
_UNREAD = object()

Body = TypeVar("Body", bound=msgspec.Struct)


def parse_body(body: bytes, kind: type[Body]) -> tuple[Body, dict[str, Any]]:
    """Return the body as a checked struct, and as plain JSON values with everything the client wrote.

    Raises:
        ApiError: 400 with the path of the field at fault.
    """
    plain: Any = _UNREAD
    try:
        plain = _decode(body)
        return msgspec.convert(plain, kind), plain
    except _NumberError:
        return _parse_beyond_range(body, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), plain, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid_json(error, body) from None
    except RecursionError:
        raise _too_deep() from None


class _NumberError(Exception):
    """A number is beyond any range, somewhere."""


def _decode(body: bytes) -> Any:
    if not body.strip():
        raise ApiError(400, "empty_body", "The request body is empty.", hint="send a JSON object")
    _check_containers(body)
    try:
        plain = msgspec.json.decode(body)
    except msgspec.ValidationError:
        # Without a type there is nothing else to be wrong with JSON.
        raise _NumberError from None
    _check_depth(body, plain)
    return plain


def _num_brackets(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _check_containers(body: bytes) -> None:
    if _num_brackets(body) > MAX_CONTAINERS and _num_brackets(_STRING.sub(b"", body)) > MAX_CONTAINERS:
        raise ApiError(400, "invalid_json", f"The body has more than {MAX_CONTAINERS} lists and objects.", hint="send less")


def _check_depth(body: bytes, plain: Any) -> None:
    # Nesting is bounded by the number of brackets; most bodies need no walk.
    if _num_brackets(body) > MAX_DEPTH and is_deeper(plain, MAX_DEPTH):
        raise _too_deep()


def _parse_beyond_range(body: bytes, kind: type[Body]) -> tuple[Body, dict[str, Any]]:
    """The same for a body with a number beyond any range: refused in a field that we know, ignored in one that we do not."""
    try:
        plain = json.loads(_with_short_integers(body))
        _check_depth(body, plain)
        # The typed decoder reads only the fields that we know, and is as strict about JSON as the other one.
        return msgspec.json.decode(body, type=kind), plain
    except msgspec.ValidationError as error:
        raise _explain(str(error), plain, kind) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise _invalid_json(error, body) from None
    except RecursionError:
        raise _too_deep() from None


def _with_short_integers(body: bytes) -> bytes:
    """Return the body with another number beyond any range in place of each integer of too many digits."""
    alike = body.translate(_DIGITS_ALIKE)
    parts: list[bytes] = []
    end, is_in_string = 0, False
    while (begin := alike.find(_TOO_LONG, end)) >= 0:
        before, digits = body[end:begin], _DIGITS.match(body, begin)
        assert digits is not None, "digits where digits were found"
        is_in_string ^= before.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"') % 2 == 1
        is_integer = not is_in_string and _INTEGER.match(body, begin) is not None
        parts += (before, _INFINITE if is_integer else digits.group())
        end = digits.end()
    return b"".join((*parts, body[end:]))


def _invalid_json(error: Exception, body: bytes) -> ApiError:
    # The decoder looks for the other half beyond the end of the body, and misses that instead.
    reason = "half of an escaped utf-16 surrogate pair" if _HALF_PAIR_AT_END.search(body) else error
    return ApiError(400, "invalid_json", f"The body is not valid JSON: {reason}.", hint="send UTF-8 JSON")


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether JSON values are nested more than `limit` levels deep. Uses no stack."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        children: list[Any] = []
        for node in level:
            # The exact type: this is done for each of a million numbers.
            inner = node.values() if type(node) is dict else node
            children += [child for child in inner if type(child) is dict or type(child) is list]
        if not children:
            return False
        level = children
    return True


def _too_deep() -> ApiError:
    return ApiError(400, "invalid_json", f"The body is nested more than {MAX_DEPTH} levels deep.")


def _explain(text: str, plain: Any, kind: type[msgspec.Struct]) -> ApiError:
    problem, _, where = text.partition(" - at `$")
    path = where.removesuffix("`").lstrip(".")
    missing = _MISSING.match(problem)
    if missing:
        param = f"{path}.{missing[1]}" if path else missing[1]
        return ApiError(400, "missing_required_parameter", f"{param} is required.", param=param)
    if not path:
        return ApiError(400, "invalid_type", f"The body must be a JSON object, got {describe(plain)}.")
    steps = [name or index for name, index in _STEP.findall(path)]
    allowed = allowed_at(kind, steps, plain) or problem
    if _OUT_OF_RANGE in problem:
        allowed = "a number within the range of a float" if allowed == ANY_VALUE else allowed
        return ApiError(400, "invalid_value", f"{path} must be {allowed}, got a number {_OUT_OF_RANGE}.", param=path)
    given = _value_at(plain, steps)
    shown = "" if given is _UNREAD else f", got {describe(given)}"
    code = "invalid_type" if "got `" in problem else "invalid_value"
    hint = _hint(given) or lower_case_hint(given, _QUOTED.findall(allowed))
    return ApiError(400, code, f"{path} must be {allowed}{shown}.", param=path, hint=hint)


def _value_at(plain: Any, steps: list[str]) -> Any:
    value = plain
    for step in steps:
        value = inside(value, step, _UNREAD)
    return value


def _hint(given: Any) -> str | None:
    is_media = isinstance(given, str) and given in ("image_url", "input_audio", "file", "video_url")
    return "this server takes text only" if is_media else None
