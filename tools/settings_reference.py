"""Writes the settings tables into docs/configuration.md, between the markers of each section.

Usage: ``python tools/settings_reference.py``; a test fails while the file is out of date.
"""

import re
from pathlib import Path

from ultrafast.config.reference import markdown_table

DOCUMENT = Path(__file__).parent.parent / "docs" / "configuration.md"
BLOCK = re.compile(r"(<!-- settings:(?P<section>\w+) -->\n).*?(<!-- /settings -->)", re.DOTALL)


def render(text: str) -> str:
    """The document with every block replaced by the current table."""
    return BLOCK.sub(lambda block: f"{block[1]}{markdown_table(block['section'])}{block[3]}", text)


if __name__ == "__main__":
    DOCUMENT.write_text(render(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
