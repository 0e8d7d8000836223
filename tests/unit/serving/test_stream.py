from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ultrafast.core.events import TokenProduced
from ultrafast.core.step import TokenLogprobs
from ultrafast.serving.contract import Delta
from ultrafast.serving.stops import StopAutomaton
from ultrafast.serving.stream import ChoiceStream, OutputPlan
from ultrafast.serving.tool_formats import ToolFormat

TEXT = "héllo 👋🏽 世界! ### tail"
PIECES = [*(bytes([byte]) for byte in range(256)), b""]


def events(data: bytes, logprob: float | None = None) -> list[TokenProduced]:
    logprobs = None if logprob is None else TokenLogprobs(logprob, ((65, -0.5), (256, -1.5)))
    return [TokenProduced("r", byte, logprobs) for byte in data]


def play(plan: OutputPlan, batches: Sequence[Sequence[TokenProduced]]) -> tuple[ChoiceStream, list[Delta]]:
    choice = ChoiceStream(0, plan)
    deltas = [choice.add(batch) for batch in batches]
    deltas.append(choice.finish())
    return choice, [delta for delta in deltas if delta is not None]


def test_one_token_at_a_time_is_exact() -> None:
    choice, deltas = play(OutputPlan(PIECES), [[event] for event in events(TEXT.encode())])
    assert "".join(delta.text for delta in deltas) == TEXT
    assert all("\ufffd" not in delta.text for delta in deltas)
    assert sum(delta.num_tokens for delta in deltas) == choice.num_tokens == len(TEXT.encode())


def test_cut_in_the_middle_of_a_character() -> None:
    _, deltas = play(OutputPlan(PIECES), [[event] for event in events("世".encode()[:2])])
    assert [delta.text for delta in deltas] == ["\ufffd"]
    assert deltas[0].num_tokens == 2


def test_stop_string_ends_text_and_count() -> None:
    choice, deltas = play(OutputPlan(PIECES, stops=StopAutomaton(["###"])), [[event] for event in events(TEXT.encode())[:-2]])
    assert "".join(delta.text for delta in deltas) == "héllo 👋🏽 世界! "
    assert choice.stop_match == "###"
    assert choice.num_tokens == len("héllo 👋🏽 世界! ".encode())


def test_tokens_that_arrive_together_make_one_delta() -> None:
    _, deltas = play(OutputPlan(PIECES), [events(b"abc"), events(b"def")])
    assert [(delta.text, delta.num_tokens) for delta in deltas] == [("abc", 3), ("def", 3)]


@given(st.text("a#b世", max_size=30), st.lists(st.text("#a", min_size=1, max_size=3), max_size=2), st.integers(1, 5))
def test_counts_and_logprobs_belong_to_delivered_tokens(text: str, stops: list[str], size: int) -> None:
    tokens = events(text.encode(), -1.0)
    batches = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    choice, deltas = play(OutputPlan(PIECES, stops=StopAutomaton(stops) if stops else None), batches)
    delivered = "".join(delta.text for delta in deltas)
    assert choice.num_tokens == sum(delta.num_tokens for delta in deltas) == sum(len(delta.logprobs) for delta in deltas)
    assert b"".join(entry.token_bytes for delta in deltas for entry in delta.logprobs) == delivered.encode()
    assert text.startswith(delivered)


def test_logprob_entries() -> None:
    plan = OutputPlan(PIECES, special_text=lambda token: f"<{token}>")
    _, (delta,) = play(plan, [events(b"x", -0.25)])
    assert (delta.logprobs[0].token, delta.logprobs[0].token_bytes, delta.logprobs[0].logprob) == ("x", b"x", -0.25)
    assert delta.logprobs[0].top == (("A", b"A", -0.5), ("<256>", b"<256>", -1.5))


def test_reasoning_then_a_tool_call_with_control_markers() -> None:
    text = b'why</think>\n\nI look.\xfe{"name": "f", "arguments": {"a": 1}}\xff'
    plan = OutputPlan(
        [b"" if token in (254, 255) else piece for token, piece in enumerate(PIECES)],
        overrides={254: b"<tool_call>", 255: b"</tool_call>"},
        splits_reasoning=True,
        is_thinking=True,
        tool_format=ToolFormat.HERMES,
        tool_names=frozenset({"f"}),
    )
    choice, deltas = play(plan, [[event] for event in events(text)])
    assert "".join(delta.reasoning for delta in deltas) == "why"
    assert "".join(delta.text for delta in deltas) == "I look."
    (call,) = [call for delta in deltas for call in delta.tool_calls]
    assert (call.index, call.name, call.arguments) == (0, "f", '{"a": 1}')
    assert call.call_id is not None
    assert choice.num_tool_calls == 1
    assert choice.num_tokens == len(text)


def test_tag_cut_off_by_the_end_is_delivered() -> None:
    plan = OutputPlan(PIECES, splits_reasoning=True, tool_format=ToolFormat.HERMES, tool_names=frozenset())
    _, deltas = play(plan, [[event] for event in events(b"<thi")])
    assert "".join(delta.text for delta in deltas) == "<thi"


def test_a_stop_string_counts_after_min_tokens_only() -> None:
    plan = OutputPlan(PIECES, stops=StopAutomaton(["#"]), min_tokens=3)
    choice, deltas = play(plan, [events(b"a#"), events(b"#b"), events(b"c#d")])
    assert "".join(delta.text for delta in deltas) == "a##bc"
    assert (choice.stop_match, choice.num_tokens) == ("#", 5)
