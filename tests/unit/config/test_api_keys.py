"""API keys: never an open server by accident, never a key in a message."""

import pytest

from ultrafast.config.api_keys import admin_key, read_api_keys
from ultrafast.core.errors import ConfigError


def test_file_and_variable_are_joined(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# team a\nfirst-key-1\n\n  bob second-key-2  \n")
    assert read_api_keys(str(file), {"ULTRAFAST_API_KEY": "third-key-3"}) == (
        ("line 2", "first-key-1", False),
        ("bob", "second-key-2", False),
        ("ULTRAFAST_API_KEY", "third-key-3", False),
    )


def test_a_file_of_a_windows_editor_is_read(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbffirst-key-1\r\nbob second-key-2\r\n")
    assert read_api_keys(str(file), {}) == (("line 1", "first-key-1", False), ("bob", "second-key-2", False))


def test_a_key_may_be_marked_as_that_of_the_operator(tmp_path):
    file = tmp_path / "keys"
    file.write_text("admin first-key-1\nops second-key-2 admin\n")
    keys = read_api_keys(str(file), {"ULTRAFAST_API_KEY": "env third-key-3 admin"})
    assert [(key.name, key.is_admin) for key in keys] == [("admin", False), ("ops", True), ("env", True)]
    assert admin_key(keys) == "second-key-2"
    assert admin_key(keys[:1]) == "first-key-1", "the server says why, if it is not enough"
    assert admin_key(()) is None


def test_no_source_means_no_keys():
    assert read_api_keys(None, {"ULTRAFAST_API_KEY": " "}) == ()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "# only a comment\n",
        "short\n",
        "bob has inside-secrets\n",
        "bob inside-secrets root\n",
        "short admin\n",
        "bob: schlüssel1\n",
    ],
)
def test_a_file_that_would_open_the_server_is_refused(tmp_path, content):
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_api_keys(str(file), {})
    assert caught.value.hint
    assert "short" not in caught.value.message
    assert "inside" not in caught.value.message


def test_an_unreadable_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Is a directory"):
        read_api_keys(str(tmp_path), {})
