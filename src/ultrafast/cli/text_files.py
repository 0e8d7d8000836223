"""Text files that a command is given: read whole, or an error that says what is wrong with which."""

from __future__ import annotations

from pathlib import Path

from ultrafast.core.errors import ConfigError


def read_text_file(file: str, what: str, param: str | None = None) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Args:
        file: its path; `~` is understood.
        what: what the file is, for the message.
        param: the setting that names it.

    Raises:
        ConfigError: it cannot be read, or is no UTF-8 text.
    """
    path = Path(file).expanduser()
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"Cannot read the {what} {path}: {reason}.", param=param, hint="Check the path and its permissions."
        ) from error
