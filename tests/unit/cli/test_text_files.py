"""Text files on the command line."""

import pytest

from ultrafast.cli.text_files import read_text_file
from ultrafast.core.errors import ConfigError


def test_a_byte_order_mark_is_no_text(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffHé\r\n".encode())
    assert read_text_file(str(file), "system prompt") == "Hé\n"


@pytest.mark.parametrize("content", [None, b"\xff\xfea\0"], ids=["missing", "utf-16"])
def test_what_is_no_text_is_an_error_with_a_hint(tmp_path, content):
    file = tmp_path / "prompt.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="Cannot read the system prompt") as caught:
        read_text_file(str(file), "system prompt", "model.pinned_prompts")
    assert caught.value.param == "model.pinned_prompts"
    assert caught.value.hint
