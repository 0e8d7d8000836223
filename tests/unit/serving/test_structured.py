from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving import structured
from ultrafast.serving.contract import ResponseFormat
from ultrafast.serving.endless_schemas import TooEntangledError, is_endless


class ByteVocabulary:
    """256 bytes and an end token."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(TokenizerWrapper(ByteVocabulary()), n_vocab=257)


def accepts(grammar: str | None, text: str) -> bool:
    assert grammar is not None
    matcher = LLMatcher(TOKENIZER, grammar)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting() and not matcher.is_error()


def schema(value: dict[str, Any]) -> ResponseFormat:
    return ResponseFormat("json_schema", value)


def test_text_has_no_grammar() -> None:
    assert structured.grammar_for(ResponseFormat()) is None


def test_json_object() -> None:
    grammar = structured.grammar_for(ResponseFormat("json_object"))
    assert accepts(grammar, '{"a": [1, {"b": null}]}')
    assert not accepts(grammar, "[1]")
    assert not accepts(grammar, "text")


def test_schema_is_enforced() -> None:
    grammar = structured.grammar_for(
        schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False})
    )
    assert accepts(grammar, '{"n": 5}')
    assert not accepts(grammar, '{"n": "5"}')
    assert not accepts(grammar, "{}")


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ('{"a":1}', True),
        ('{"a": 1, "b": 2}', True),
        ('{\n  "a": [\n    1\n  ]\n}', True),
        ('{\n\n"a":1}', False),
        ('{  "a":1}', False),
        ('{\n' + " " * 40 + '"a":1}', False),
        (' {"a":1}', False),
    ],
)  # fmt: skip
def test_white_space_cannot_run_away(text: str, is_accepted: bool) -> None:
    assert accepts(structured.grammar_for(ResponseFormat("json_object")), text) is is_accepted


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "nonsense"},
        {"not": {"type": "object"}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}},
        {"$ref": "http://example.com/schema"},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "(?=x)y"},
        {"type": "string", "pattern": "(unclosed"},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": 5},
        {"type": "string", "enum": ["x" * 40_000]},
        {"properties": {f"p{i}": {"type": "string"} for i in range(600)}},
    ],
)
def test_what_cannot_be_enforced_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        structured.grammar_for(schema(bad))
    assert caught.value.param == "response_format"


def required(name: str, value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: value}, "required": [name]}


def endless(reference: str = "#") -> dict[str, Any]:
    return required("next", {"$ref": reference})


UNSATISFIABLE: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": endless("#/$defs/b"), "b": endless("#/$defs/a")}},
    endless(),
    endless("#/properties/next"),
    required("deep", {"type": "array", "prefixItems": [endless("#")], "minItems": 1}),
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": ["array", "object"], "items": {"$ref": "#"}, "minItems": 2, **endless()} | {"type": ["array", "object"]},
    {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["x"]},
    required("a", {"$ref": "#/$defs/~0~1"}) | {"$defs": {"~/": endless("#/$defs/~0~1")}},
    {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}},
    endless("#loop") | {"$anchor": "loop"},
    required("a", {"$ref": "#/$defs/a%20b"}) | {"$defs": {"a b": endless("#/$defs/a%20b")}},
    {"enum": []},
    {"type": []},
    {"anyOf": []},
    {"oneOf": [{"enum": []}]},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "integer", "minimum": 5, "maximum": 2},
    {"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 5},
    {"type": "array", "minItems": 5, "maxItems": 2},
    {"allOf": [{"const": 1}, {"const": 2}]},
    {"allOf": [{"type": "string", "pattern": "^a$"}, {"type": "string", "pattern": "^b$"}]},
    {"type": "string", "pattern": "^abc$", "maxLength": 1},
    required("a", False),
    required("a", required("b", {"type": "array", "items": False, "minItems": 1})),
]


@pytest.mark.parametrize("bad", UNSATISFIABLE)
def test_what_nothing_can_match_is_refused_and_the_message_says_so(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be satisfied") as caught:
        structured.grammar_for(schema(bad))
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_json_schema")
    assert caught.value.hint


@pytest.mark.parametrize("bad", [{"type": []}, {"enum": []}, required("a", {"type": []})])
def test_what_is_empty_is_not_said_to_require_itself(bad: dict[str, Any]) -> None:
    assert not is_endless(bad)
    with pytest.raises(InvalidRequestError, match=r"cannot be satisfied: .*(empty|unsatisfiable)"):
        structured.grammar_for(schema(bad))


@pytest.mark.parametrize(
    ("good", "text"),
    [
        ({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}, '{"next":{"next":{}}}'),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}, "[[null],null]"),
        (required("next", {"anyOf": [{"$ref": "#"}, {"type": "null"}]}), '{"next":{"next":null}}'),
        ({**endless(), "type": ["object", "null"]}, '{"next":null}'),
        ({**endless(), "type": "null"}, "null"),
        ({"type": "array", "items": {"$ref": "#"}}, "[[],[[]]]"),
        (required("a", {"$ref": "#/$defs/t"}) | {"$defs": {"t": {"type": "string"}, "unused": endless()}}, '{"a":"x"}'),
        ({"type": "object", "minProperties": 1, "additionalProperties": {"type": ["null", "object"]}}, '{"x":null}'),
        ({"$anchor": "t", "type": "object", "properties": {"t": {"$ref": "#t"}}, "additionalProperties": False}, '{"t":{}}'),
        ({"type": "object", "patternProperties": {"^x": {"type": "null"}}, "required": ["x"]}, '{"x":null}'),
    ],
)
def test_a_recursion_that_can_end_is_enforced(good: dict[str, Any], text: str) -> None:
    assert accepts(structured.grammar_for(schema(good)), text)


def test_a_long_chain_of_references_is_followed_to_its_end() -> None:
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(200)}
    assert not is_endless({"$ref": "#/$defs/d0", "$defs": {**links, "d200": {"type": "null"}}})
    assert is_endless({"$ref": "#/$defs/d0", "$defs": {**links, "d200": {"$ref": "#/$defs/d7"}}})


def test_references_that_are_followed_again_and_again_cost_a_bounded_time() -> None:
    """A hundred spellings of one reference, each to a wide node at the start of a long chain: minutes without a bound."""
    name, length = "biggest", 90

    def spelled(number: int) -> str:
        return "".join(f"%{ord(letter):02x}" if number >> bit & 1 else letter for bit, letter in enumerate(name))

    chain: dict[str, Any] = {f"c{i}": {"$ref": f"#/$defs/c{i + 1}"} for i in range(length)}
    chain[f"c{length}"] = {"type": "integer"}
    chain[name] = {"allOf": [*({} for _ in range(2000)), {"$ref": "#/$defs/c0"}]}
    schema = {"$defs": chain, "anyOf": [{"$ref": f"#/$defs/{spelled(number)}"} for number in range(1, 101)]}
    with pytest.raises(TooEntangledError):
        is_endless(schema)
    with pytest.raises(InvalidRequestError, match="too many ways") as refused:
        structured.grammar_for(ResponseFormat("json_schema", schema))
    assert refused.value.code == "invalid_json_schema"


@pytest.mark.parametrize("index", ["²", "1" * 5000, "٣"])
def test_a_reference_to_no_index_is_refused_not_raised(index: str) -> None:
    schema = {"anyOf": [{"type": "integer"}], "$ref": f"#/anyOf/{index}"}
    with pytest.raises(InvalidRequestError):
        structured.grammar_for(ResponseFormat("json_schema", schema))


def test_deep_schema_is_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(InvalidRequestError):
        structured.grammar_for(schema(deep))
    while deep.get("items"):  # take it apart by hand: freeing it recursively is what a deep structure is bad at
        deep = deep["items"]


@pytest.mark.parametrize(
    "pattern", [r"^hello there indeed\!$", r"^hello there indeed\\!$", r"^[a-z]{2,5}\d+$", r"^(\([0-9]{3}\))?[0-9]{3}-[0-9]{4}$"]
)
def test_patterns_that_broke_other_servers_are_enforced(pattern: str) -> None:
    """Their grammars failed to parse and the answer came back unconstrained."""
    grammar = structured.grammar_for(schema({"type": "string", "pattern": pattern}))
    assert not accepts(grammar, '"something else"')


def test_odd_descriptions_change_nothing() -> None:
    """A description once emptied the grammar stack of another server and ended its process."""
    for description in ('"quotes" \\ and \n ::= root', "(-- comment", "ünïcode 世界"):
        grammar = structured.grammar_for(schema({"type": "object", "description": description}))
        assert accepts(grammar, "{}")


@pytest.mark.parametrize("grammar", ["root ::= foo", "start: foo", "", "{", json.dumps({"grammars": []})])
def test_malformed_grammars_are_reported_not_raised_by_the_library(grammar: str) -> None:
    with pytest.raises(InvalidRequestError):
        structured.check_grammar(grammar, "response_format")
