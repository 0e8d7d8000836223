"""Whether flash attention is on is libllama's verdict, never our own request read back."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from ultrafast.core.errors import ConfigError
from ultrafast.engine.llama import flash_attention
from ultrafast.engine.llama.model import ContextSizes, Model
from ultrafast.engine.options import EngineOptions

REQUEST = "llama_context: flash_attn            = auto"
ON = "resolve_fused_ops: Flash Attention enabled"
OFF = "resolve_fused_ops: Flash Attention not supported, set to disabled"
FORCED = "llama_init_from_model: enabling flash_attn since it is required for quantized V cache"
FORCED_OFF = "llama_init_from_model: flash_attn is not compatible with Grok - forcing off"
ENABLED = "llama_context: flash_attn            = enabled"


@pytest.mark.parametrize(
    ("lines", "is_on"),
    [
        ([REQUEST, ON], True),
        ([REQUEST, OFF], False),
        ([FORCED, ENABLED], True),
        ([FORCED, "llama_context: flash_attn            = disabled"], False),
        ([FORCED_OFF, "llama_context: flash_attn            = disabled"], False),
        ([ENABLED], False),  # a request, and no verdict
        ([REQUEST, "resolve_fused_ops: fused Gated Delta Net enabled"], False),
        ([], False),
    ],
)
def test_only_a_verdict_counts(lines: list[str], is_on: bool) -> None:
    assert flash_attention.is_on(lines) is is_on


class ScriptedLibrary:
    """Makes contexts and logs what it is told to, as libllama's log callback would."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        self.asked: list[int] = []
        self.freed: list[str] = []

    def llama_context_default_params(self) -> Any:
        return SimpleNamespace()

    def llama_init_from_model(self, _model: Any, params: Any) -> str:
        self.asked.append(params.flash_attn_type)
        for line in self.lines:
            logging.getLogger("ultrafast.libllama").debug(line)
        return "context"

    def llama_free(self, handle: str) -> None:
        self.freed.append(handle)

    def llama_model_free(self, handle: str) -> None:
        self.freed.append(handle)


def model_on(library: ScriptedLibrary) -> Model:
    model = Model.__new__(Model)
    vars(model).update(c=library, handle="model", has_gpu=True, sizes=ContextSizes(512, 128, 4, 2, 2, 1))
    return model


def test_a_context_whose_flash_attention_was_switched_off_is_an_error() -> None:
    library = ScriptedLibrary(REQUEST, OFF, ENABLED)
    with pytest.raises(ConfigError, match="could not be enabled") as caught:
        model_on(library)._create_context(EngineOptions("model.gguf"))
    assert caught.value.code == "flash_attention_off"
    assert caught.value.hint is not None
    assert "engine.flash_attention = false" in caught.value.hint
    assert library.freed == ["context"], "the weights may be those of another context"


@pytest.mark.parametrize(
    ("is_wanted", "line", "asked"), [(True, ON, flash_attention.AUTO), (False, "", flash_attention.DISABLED)]
)
def test_what_is_asked_for_and_what_is_reported(is_wanted: bool, line: str, asked: int) -> None:
    library = ScriptedLibrary(line)
    model = model_on(library)
    model._create_context(EngineOptions("model.gguf", flash_attention=is_wanted))
    assert library.asked == [asked]
    assert model.has_flash_attention is is_wanted
