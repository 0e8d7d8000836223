"""A server that is ready has rendered and tokenised a conversation."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.serving import templates
from tests.unit.serving.fakes import FakeTokenizer

from ultrafast.config.settings import Settings
from ultrafast.wiring import _build_prompts

INPUTS: Any = SimpleNamespace(settings=Settings(), chat_template=None)


def test_the_server_warms_its_prompts_up() -> None:
    tokenizer: Any = FakeTokenizer(next(iter(templates.ALL.values())))
    _build_prompts(INPUTS, tokenizer)
    assert tokenizer.num_tokenized_chars > 0


def test_a_template_that_refuses_is_told_and_stops_no_start(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer: Any = FakeTokenizer("{{ raise_exception('no turns') if messages|length > 2 }}{{ messages[0].content }}")
    with caplog.at_level(logging.WARNING):
        _build_prompts(INPUTS, tokenizer)
    assert "refused by this model's chat template" in caplog.text
