"""A model that libllama does not know is refused by name before a port is open or weights are read."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ultrafast.core.errors import ModelFileError
from ultrafast.engine.llama.vocab import Vocab

pytestmark = pytest.mark.integration

HEADER_BYTES = 4_000_000
"""More than the metadata of the bundled model takes."""


def test_an_unknown_architecture_is_named(model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = model_path.read_bytes()
    name = len(b"llama").to_bytes(8, "little")
    header = data[:HEADER_BYTES].replace(name + b"llama", name + b"lamma").replace(b"llama.", b"lamma.")
    path = tmp_path / "unknown.gguf"
    path.write_bytes(header + data[HEADER_BYTES:])
    with caplog.at_level(logging.ERROR), pytest.raises(ModelFileError, match="unknown model architecture: 'lamma'") as caught:
        Vocab.load(str(path))
    assert "architecture" in str(caught.value.hint)
    assert not caplog.records  # the reason is in the error, not also beside it
