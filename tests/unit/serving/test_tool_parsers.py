from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.serving.tool_formats import ToolCall, ToolFormat, detect_format, new_call_id
from ultrafast.serving.tool_parsers import new_parser

NAMES = frozenset({"f", "g"})
G = '{"name": "g", "arguments": {}}'
EVIL = '<tool_call>{"name": "evil", "arguments": {}}</tool_call>'
F = '{"name": "f", "arguments": {"a": "x } \\" {"}}'
CALL_F = ToolCall("f", '{"a": "x } \\" {"}')
CALL_G = ToolCall("g", "{}")


def run(tool_format: ToolFormat, chunks: list[str]) -> tuple[str, list[ToolCall]]:
    parser = new_parser(tool_format, NAMES)
    parts = [parser.add(chunk) for chunk in chunks]
    parts.append(parser.finish())
    return "".join(part.text for part in parts), [call for part in parts for call in part.calls]


CASES = [
    (ToolFormat.HERMES, f"<tool_call>\n{F}\n</tool_call>", "", [CALL_F]),
    (ToolFormat.HERMES, f"Let me see.\n<tool_call>{F}</tool_call>", "Let me see.", [CALL_F]),
    (ToolFormat.HERMES, f"<tool_call>{F}</tool_call>\n<tool_call>{G}</tool_call>", "", [CALL_F, CALL_G]),
    (ToolFormat.HERMES, f"<tool_call>{F}", "", [CALL_F]),
    (ToolFormat.HERMES, "a \n<tool_call>{broken</tool_call> b", "a \n<tool_call>{broken</tool_call> b", []),
    (ToolFormat.HERMES, "a <tool_call>{bro", "a <tool_call>{bro", []),
    (ToolFormat.HERMES, EVIL, EVIL, []),
    (ToolFormat.HERMES, "1 < 2 <tool", "1 < 2 <tool", []),
    (ToolFormat.HERMES, "white   \n\n space  ", "white   \n\n space  ", []),
    (ToolFormat.HERMES, "w" + " " * 300 + "x", "w" + " " * 300 + "x", []),
    (ToolFormat.LLAMA, '{"name": "f", "parameters": {"a": "x } \\" {"}}', "", [CALL_F]),
    (ToolFormat.LLAMA, f'<|python_tag|>{F}; {{"name": "g", "parameters": {{}}}}', "", [CALL_F, CALL_G]),
    (ToolFormat.LLAMA, " \n" + F, "", [CALL_F]),
    (ToolFormat.LLAMA, 'The object {"name": "f"}', 'The object {"name": "f"}', []),
    (ToolFormat.LLAMA, '{"answer": 42}', '{"answer": 42}', []),
    (ToolFormat.LLAMA, F + " and text", F + " and text", []),
    (ToolFormat.LLAMA, "<|python", "<|python", []),
    (ToolFormat.MISTRAL, f"[TOOL_CALLS][{F}]", "", [CALL_F]),
    (ToolFormat.MISTRAL, f'text [TOOL_CALLS] [{F}, {{"name": "g", "arguments": {{}}}}]', "text ", [CALL_F, CALL_G]),
    (ToolFormat.MISTRAL, "[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]g[ARGS]{}", "", [CALL_G, CALL_G]),
    (ToolFormat.MISTRAL, "[TOOL_CALLS]g[ARGS]{", "[TOOL_CALLS]g[ARGS]{", []),
    (ToolFormat.MISTRAL, "[TOOL_CALLS][{}]", "[TOOL_CALLS][{}]", []),
    (ToolFormat.MISTRAL, "a [TOOL", "a [TOOL", []),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "expected", "calls"), CASES)
def test_examples_whole_and_by_character(tool_format: ToolFormat, text: str, expected: str, calls: list[ToolCall]) -> None:
    assert run(tool_format, [text]) == (expected, calls)
    assert run(tool_format, list(text)) == (expected, calls)


fragments = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        F,
        "{",
        "}",
        "<",
        " ",
        "\n",
        "text",
        "[ARGS]",
        "g",
        "[",
        "]",
    ]
)


@given(st.sampled_from(ToolFormat), st.lists(fragments, max_size=8), st.data())
def test_chunks_do_not_matter_and_nothing_is_lost(tool_format: ToolFormat, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = run(tool_format, [text])
    assert run(tool_format, chunks) == whole
    if not whole[1]:
        assert whole[0] == text


def test_text_before_a_call_passes_at_once() -> None:
    parser = new_parser(ToolFormat.HERMES, NAMES)
    assert parser.add("Hello").text == "Hello"
    assert parser.add(" world <tool").text == " world"
    assert parser.add("box").text == " <toolbox"


def test_formats_are_recognised() -> None:
    assert detect_format('Use <tool_call>{"name": ...}</tool_call>') is ToolFormat.HERMES
    assert detect_format("{{ '[TOOL_CALLS]' }}") is ToolFormat.MISTRAL
    assert detect_format('{"name": function name, "parameters": dict}') is ToolFormat.LLAMA
    assert detect_format("<tool_call><function=f><parameter=a>") is None
    assert detect_format("nothing") is None


def test_call_ids() -> None:
    assert new_call_id(ToolFormat.HERMES).startswith("call_")
    assert len(new_call_id(ToolFormat.MISTRAL)) == 9
    assert new_call_id(ToolFormat.HERMES) != new_call_id(ToolFormat.HERMES)


def test_arguments_are_json_text() -> None:
    _, (call,) = run(ToolFormat.HERMES, ['<tool_call>{"name": "f", "arguments": {"city": "北京"}}</tool_call>'])
    assert json.loads(call.arguments) == {"city": "北京"}
