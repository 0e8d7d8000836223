from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher
from tests.unit.serving import templates
from tests.unit.serving.fakes import FakeTokenizer
from tests.unit.serving.test_structured import TOKENIZER, accepts

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving.contract import ChatCall, GenerationOptions, ResponseFormat
from ultrafast.serving.prompts import PromptBuilder
from ultrafast.serving.tool_formats import ToolFormat
from ultrafast.serving.tools import ToolPlan, plan_tools

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}, "required": ["city"], "$defs": {"c": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]


def plan(
    template: str, tools: list[dict[str, Any]], choice: str = "auto", *, kind: str = "text", control: bool = True
) -> ToolPlan:
    prompts = PromptBuilder(FakeTokenizer(template))
    call = ChatCall(
        "r", "m", [{"role": "user", "content": "x"}], GenerationOptions(response_format=ResponseFormat(kind)), 0.0, tools, choice
    )
    return plan_tools(call, prompts.require_format(), prompts.control_ids if control else {})


@pytest.mark.parametrize(
    ("template", "tool_format"),
    [
        (templates.HERMES_TOOLS, ToolFormat.HERMES),
        (templates.MISTRAL_TOOLS, ToolFormat.MISTRAL),
        (templates.LLAMA_TOOLS, ToolFormat.LLAMA),
    ],
)
def test_auto_shows_the_tools_and_parses_calls(template: str, tool_format: ToolFormat) -> None:
    result = plan(template, TOOLS)
    assert result.tool_format is tool_format
    assert result.names == {"weather", "now"}
    assert list(result.shown) == TOOLS
    assert result.grammar is None


def test_none_shows_nothing_even_where_tools_are_unknown() -> None:
    assert plan(templates.CHATML, TOOLS, "none") == ToolPlan()
    assert plan(templates.CHATML, []) == ToolPlan()


@pytest.mark.parametrize("template", [templates.CHATML, "{{ tools | tojson }}" + templates.CHATML])
def test_template_without_a_known_format_is_a_clear_error(template: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(template, TOOLS)
    assert caught.value.param == "tools"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "now", "arguments": {"anything": [1]}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": 5}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', False),
        ("Sure!", False),
    ],
)
def test_required_forces_one_call(text: str, is_accepted: bool) -> None:
    assert accepts(plan(templates.HERMES_TOOLS, TOOLS, "required").grammar, text) is is_accepted


def test_a_name_forces_that_function() -> None:
    grammar = plan(templates.LLAMA_TOOLS, TOOLS, "now").grammar
    assert accepts(grammar, '{"name": "now", "parameters": {}}')
    assert not accepts(grammar, '{"name": "weather", "parameters": {"city": "x"}}')


def test_control_tokens_are_forced_as_tokens() -> None:
    tokenizer = FakeTokenizer(templates.MISTRAL_TOOLS)
    grammar = plan(templates.MISTRAL_TOOLS, TOOLS, "now").grammar
    assert grammar is not None
    assert f"<[{tokenizer.control['[TOOL_CALLS]']}]>" in grammar
    grammar = plan(templates.MISTRAL_TOOLS, TOOLS, "now", control=False).grammar
    assert accepts(grammar, '[TOOL_CALLS][{"name": "now", "arguments": {}}]')
    assert grammar is not None
    assert not LLMatcher(TOKENIZER, grammar).is_error()


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([{"type": "retrieval"}], "auto", "tools[0].type"),
        ([{"type": "function", "function": {"name": "a b"}}], "auto", "tools[0].function.name"),
        ([TOOLS[0], TOOLS[0]], "auto", "tools[1].function.name"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], "auto", None),
        ([{"type": "function", "function": {"name": "a", "parameters": [1]}}], "auto", "tools[0].function.parameters"),
        (TOOLS * 100, "auto", "tools"),
        (TOOLS, "missing", "tool_choice"),
        (
            [
                {"type": "function", "function": {"name": f"f{i}", "description": "d", "parameters": {"title": "x" * 1000}}}
                for i in range(100)
            ],
            "required",
            "tools",
        ),
        ([], "required", "tool_choice"),
        ([{"type": "function", "function": {"name": "a", "strict": True, "parameters": {"uniqueItems": True}}}], "a", "tools"),
    ],
)
def test_bad_tools(tools: list[dict[str, Any]], choice: str, param: str | None) -> None:
    if param is None:
        assert plan(templates.HERMES_TOOLS, tools, choice).names == {"a"}
        return
    with pytest.raises(InvalidRequestError) as caught:
        plan(templates.HERMES_TOOLS, tools, choice)
    assert caught.value.param == param


def test_tools_and_response_format_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be combined"):
        plan(templates.HERMES_TOOLS, TOOLS, kind="json_object")
