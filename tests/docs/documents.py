"""The documents of the repository and the code blocks in them.

A block whose fence says `bash` or `python` is run by a test; `bash server` and `python server` get a running server, whose
address stands in for `http://127.0.0.1:8080`. A `toml` block is a settings file, `toml slo` one of
`ultrafast gate`, and both are read by a test. Any other fence (none, `json`, `nginx`, ...) is only shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEFAULT_URL = "http://127.0.0.1:8080"
_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A code block. All but the code comes from its fence."""

    document: Path
    line: int
    language: str
    needs_server: bool
    is_slo_file: bool
    code: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def read_snippets() -> list[Snippet]:
    """Every block of every document, those without a language included."""
    return [snippet for document in DOCUMENTS for snippet in _snippets_of(document)]


def read_all_text() -> str:
    """All documents as one text."""
    return "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)


def _snippets_of(document: Path) -> list[Snippet]:
    text = document.read_text(encoding="utf-8")
    snippets = []
    for block in _BLOCK.finditer(text):
        words = block["info"].split()
        line = text.count("\n", 0, block.start()) + 1
        snippets.append(
            Snippet(document, line, words[0] if words else "", "server" in words[1:], "slo" in words[1:], block["code"])
        )
    return snippets
