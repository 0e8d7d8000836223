"""Header values as text, for messages: what a client wrote, as it meant it.

RFC 9110, section 5.5: a field value is visible ASCII; bytes above it are opaque, were ISO-8859-1 once, and are UTF-8 from most
clients of today. So: UTF-8 where the bytes are that, else ISO-8859-1, which every byte is.
"""

from __future__ import annotations

_MAX_SHOWN = 40


def header_text(value: bytes) -> str:
    """Return a header's value as text, without the blanks around it. Never raises."""
    try:
        return value.decode("utf-8").strip()
    except UnicodeDecodeError:
        return value.decode("latin-1").strip()


def shown(text: str) -> str:
    """Return a value quoted, control characters escaped, cut to a few words."""
    return repr(text[:_MAX_SHOWN])
