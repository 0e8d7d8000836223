from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.serving.fakes import FakeTokenizer

from ultrafast.core.errors import ContextLengthError, InvalidRequestError
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.serving.contract import GenerationOptions
from ultrafast.serving.limits import check_sequences_fit, check_text_fits, check_token_ids, longest_piece_bytes, output_limit
from ultrafast.serving.sampling import SamplingDefaults

DEFAULTS = SamplingDefaults()


@pytest.mark.parametrize(
    ("max_tokens", "default", "num_prompt", "expected"),
    [(10, None, 90, 10), (None, None, 90, 10), (None, 5, 90, 5), (None, 50, 90, 10), (1, None, 99, 1), (0, None, 50, 0)],
)
def test_output_limit(max_tokens: int | None, default: int | None, num_prompt: int, expected: int) -> None:
    options = GenerationOptions(max_tokens=max_tokens)
    assert output_limit(options, SamplingDefaults(max_tokens=default), num_prompt, 100, "prompt") == expected


@pytest.mark.parametrize(("max_tokens", "num_prompt"), [(None, 100), (None, 150), (11, 90), (1, 100), (0, 100)])
def test_context_length_names_both_counts(max_tokens: int | None, num_prompt: int) -> None:
    with pytest.raises(ContextLengthError) as caught:
        output_limit(GenerationOptions(max_tokens=max_tokens), DEFAULTS, num_prompt, 100, "prompt")
    assert "100 tokens" in caught.value.message
    assert str(num_prompt + (max_tokens or 0)) in caught.value.message
    assert caught.value.code == "context_length_exceeded"


def test_empty_prompt_and_contradicting_minimum() -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        output_limit(GenerationOptions(), DEFAULTS, 0, 100, "prompt")
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        output_limit(GenerationOptions(max_tokens=5, min_tokens=6), DEFAULTS, 10, 100, "prompt")


@pytest.mark.parametrize("token", [-1, 10])
def test_token_ids_are_checked(token: int) -> None:
    check_token_ids([0, 9], 10, "prompt")
    with pytest.raises(InvalidRequestError, match=str(token)):
        check_token_ids([token], 10, "prompt")


def test_text_that_can_never_fit_is_refused_unread() -> None:
    tokenizer = FakeTokenizer()
    longest = longest_piece_bytes(tokenizer)
    assert longest == max(len(piece) for piece in [*tokenizer.pieces, *(text.encode() for text in tokenizer.control)])
    check_text_fits("x" * (longest * 100 - 1), longest, 100, "prompt")
    with pytest.raises(ContextLengthError, match="100 tokens"):
        check_text_fits("x" * (longest * 100), longest, 100, "prompt")


@pytest.mark.parametrize(
    ("num_sequences", "num_tokens", "bounds", "named"),
    [
        (6, 600, {"max_num_waiting": 2}, None),
        (7, 700, {"max_num_waiting": 2}, "at most 6: 4 places"),
        (4, 9000, {"max_num_waiting": 0, "max_waiting_tokens": 100}, None),
        (5, 100, {"max_num_waiting": 9, "max_waiting_tokens": 100}, None),
        (5, 101, {"max_num_waiting": 9, "max_waiting_tokens": 100}, "have 101 prompt tokens together"),
        (1, 9000, {"max_num_waiting": 0, "max_waiting_tokens": 100}, None),
    ],
)
def test_more_sequences_than_ever_fit_are_the_clients_mistake(
    num_sequences: int, num_tokens: int, bounds: dict[str, int], named: str | None
) -> None:
    policy = replace(DEFAULT_POLICIES[2], **bounds)

    def check() -> None:
        check_sequences_fit(num_sequences, num_tokens, 4, ServiceTier.DEFAULT, policy)

    if named is None:
        check()
        return
    with pytest.raises(InvalidRequestError, match=named) as caught:
        check()
    assert "tiers.default.max_" in caught.value.message
    assert (caught.value.param, caught.value.code) == ("n", "invalid_value")
    assert caught.value.hint
