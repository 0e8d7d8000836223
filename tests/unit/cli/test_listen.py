"""The address in the ready line, and the warning about an open server."""

import pytest

from ultrafast.cli.listen import url_of, warn_if_open


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("10.1.2.3", "http://10.1.2.3:80"),
    ],
)
def test_url(host, url):
    assert url_of(host, 80) == url


@pytest.mark.parametrize(
    ("host", "has_keys", "warns"), [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.1", False, False)]
)
def test_warning(capsys, host, has_keys, warns):
    warn_if_open(host, has_keys)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("hint: set server.api_key_file" in captured.err) is warns
