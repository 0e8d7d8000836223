"""What a field may be, in words, read from the very types that are enforced. Only used to explain a mistake."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

ANY_VALUE = "any value"
_NAMES: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
}


@cache
def _root(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def allowed_at(kind: type[msgspec.Struct], steps: list[str], plain: Any = None) -> str | None:
    """Describe what the field at a path may be; None when the path leads nowhere. Steps are names, indices or "...".

    `plain`: what was given; where it names its kind (a message its role), the rules of that kind are described, not those of all.
    """
    nodes = [_root(kind)]
    for step in steps:
        nodes = [child for node in nodes for child in _children(node, step, plain)]
        plain = inside(plain, step)
    words = list(dict.fromkeys(_words(node) for node in nodes))
    return " or ".join(words) if words else None


def inside(plain: Any, step: str, absent: Any = None) -> Any:
    """Return what a step of a path leads to in JSON values; `absent` when nowhere."""
    if isinstance(plain, dict):
        return plain.get(step, absent)
    if isinstance(plain, list) and step.isdigit() and int(step) < len(plain):
        return plain[int(step)]
    return absent


def _children(node: inspect.Type, step: str, plain: Any) -> list[inspect.Type]:
    if isinstance(node, inspect.UnionType):
        named = [member for member in node.types if _is_named(member, plain)]
        return [child for member in named or node.types for child in _children(member, step, plain)]
    if isinstance(node, inspect.StructType):
        if node.tag_field == step:
            return [inspect.LiteralType((node.tag,))]
        return [field.type for field in node.fields if field.encode_name == step]
    if isinstance(node, inspect.ListType) and (step.isdigit() or step == "..."):
        return [node.item_type]
    if isinstance(node, inspect.DictType):
        return [node.value_type]
    return []


def _is_named(node: inspect.Type, plain: Any) -> bool:
    if not isinstance(node, inspect.StructType) or node.tag_field is None or not isinstance(plain, dict):
        return False
    return bool(plain.get(node.tag_field) == node.tag)


def _words(node: inspect.Type) -> str:
    if isinstance(node, inspect.Metadata):
        return _words(node.type)
    if isinstance(node, inspect.UnionType):
        return " or ".join(dict.fromkeys(_words(member) for member in node.types))
    if isinstance(node, inspect.LiteralType):
        return " or ".join(f'"{value}"' for value in node.values)
    if isinstance(node, inspect.IntType):
        return f"an integer{_range(node)}"
    if isinstance(node, inspect.FloatType):
        return f"a number{_range(node)}"
    if isinstance(node, inspect.StrType):
        return f"a string{_length(node, 'characters')}{f' that matches {node.pattern}' if node.pattern else ''}"
    if isinstance(node, inspect.ListType):
        return f"a list{_length(node, 'items')} of ({_words(node.item_type)})"
    if isinstance(node, inspect.DictType):
        return f"an object{_length(node, 'entries')}"
    if isinstance(node, inspect.StructType):
        return f'an object with {node.tag_field} "{node.tag}"' if node.tag_field else "an object"
    return _NAMES.get(type(node), ANY_VALUE)


def _range(node: inspect.IntType | inspect.FloatType) -> str:
    bounds = (("at least", node.ge), ("above", node.gt), ("at most", node.le), ("below", node.lt))
    # Whole numbers as they are: `:g` would round large ones.
    shown = [f"{word} {int(bound) if bound == int(bound) else bound}" for word, bound in bounds if bound is not None]
    text = " and ".join(shown)
    return f" {text}" if text else ""


def _length(node: inspect.StrType | inspect.ListType | inspect.DictType, unit: str) -> str:
    if node.min_length and node.max_length:
        return f" of {node.min_length} to {node.max_length} {unit}"
    if node.max_length:
        return f" of at most {node.max_length} {unit}"
    return f" of at least {node.min_length} {unit}" if node.min_length else ""
