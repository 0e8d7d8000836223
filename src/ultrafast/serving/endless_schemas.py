"""Finds JSON schemas that no finite text can match: a `$ref` that leads back to itself and nowhere else.

llguidance refuses what contradicts itself (`enum: []`, `minLength` above `maxLength`). It compiles a recursion without an end:
the model then writes `{"a":{"a":{"a":...` until its tokens run out, or arrives at a place where nothing may follow.

    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}    endless
    {"type": "object", "properties": {"next": {"$ref": "#"}}}                          ends: `next` may be left out

These are the unproductive symbols of a grammar (Hopcroft, Ullman: Introduction to Automata Theory, 1979, section 4.4), found
like them, as a least fixed point: a target of references ends once its schema does, given the targets known to end. Keywords
that mean nothing here count as satisfiable, so that only what is truly endless is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

_CONTAINERS = ("object", "array")
_MAX_LOOKS = 200_000
"""Parts of a schema to look at: some tenths of a second. References that lead to each other are followed again and again."""
_MAX_INDEX_DIGITS = 9


class TooEntangledError(ValueError):
    """Telling whether the schema ends would take too long."""


def is_endless(schema: Mapping[str, Any]) -> bool:
    """Return whether every value that matches would have to be infinitely deep.

    Raises:
        RecursionError: the schema is nested too deeply to look at.
        TooEntangledError: its references lead to each other in too many ways.
    """
    budget = _Budget()
    targets = {reference: _target(schema, reference) for reference in _references(schema)}
    ending: set[str] = set()
    grows = bool(targets)
    while grows:
        found = {name for name, target in targets.items() if name not in ending and _Judge(targets, ending, budget).ends(target)}
        ending |= found
        grows = bool(found)
    return not _Judge(targets, ending, budget).ends(schema)


class _Budget:
    """Of one schema, for all passes over it."""

    def __init__(self) -> None:
        self._num_left = _MAX_LOOKS

    def look(self) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            raise TooEntangledError(f"more than {_MAX_LOOKS} parts to look at")


class _Judge:
    """Says whether a schema ends, when of all `targets` only those in `ending` do."""

    def __init__(self, targets: Mapping[str, Any], ending: set[str], budget: _Budget) -> None:
        self._look = budget.look
        self._open = targets.keys() - ending

    def ends(self, schema: Any) -> bool:
        self._look()
        if not isinstance(schema, dict):
            return True  # `true`; and `false` is the library's to refuse
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference in self._open:
            return False
        if not all(self.ends(part) for part in _items(schema, "allOf")):
            return False
        for key in ("anyOf", "oneOf"):
            choices = _items(schema, key)
            if choices and not any(self.ends(choice) for choice in choices):
                return False
        return self._some_type_ends(schema)

    def _some_type_ends(self, schema: dict[str, Any]) -> bool:
        if "enum" in schema or "const" in schema:
            return True
        given = schema.get("type")
        types = [given] if isinstance(given, str) else given
        # Without a type (or with one that is none) a number would do; what no type at all is allowed is the library's to refuse.
        if not isinstance(types, list) or not types or any(kind not in _CONTAINERS for kind in types):
            return True
        return ("object" in types and self._object_ends(schema)) or ("array" in types and self._array_ends(schema))

    def _object_ends(self, schema: dict[str, Any]) -> bool:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        other = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties")
        possible = [*known.values(), other, *(patterns.values() if isinstance(patterns, dict) else ())]
        if _number(schema, "minProperties") and not any(self.ends(value) for value in possible if value is not False):
            return False
        # Any of the patterns may cover a name.
        unknown = True if patterns else other
        return all(self.ends(known.get(name, unknown)) for name in _items(schema, "required") if isinstance(name, str))

    def _array_ends(self, schema: dict[str, Any]) -> bool:
        num_items = _number(schema, "minItems")
        first = _items(schema, "prefixItems")
        if not all(self.ends(item) for item in first[:num_items]):
            return False
        return num_items <= len(first) or self.ends(schema.get("items"))


def _items(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _number(schema: dict[str, Any], key: str) -> int:
    value = schema.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _references(schema: Any) -> Iterator[str]:
    """Every `$ref` into the document itself."""
    for node in _objects(schema):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            yield reference


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object in the document; uses no stack."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def _target(schema: Any, reference: str) -> Any:
    """What a JSON pointer (RFC 6901) or an anchor names; None when it names nothing, which the library refuses."""
    pointer = unquote(reference[1:])
    if pointer and not pointer.startswith("/"):
        return next((node for node in _objects(schema) if node.get("$anchor") == pointer), None)
    node = schema
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and (index := _index(name)) is not None and index < len(node):
            node = node[index]
        else:
            return None
    return node


def _index(name: str) -> int | None:
    """The number that a step into an array is; RFC 6901 knows ASCII digits only."""
    return int(name) if name.isascii() and name.isdigit() and len(name) <= _MAX_INDEX_DIGITS else None
