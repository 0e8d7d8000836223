"""Programs from outside that some tests run: `@pytest.mark.needs_program("promtool")` on a test or a module.

Without the program such a test is skipped and says so. Where `REQUIRED_TEST_PROGRAMS` names it (as `.ci/run` does), the test
fails instead: nobody may believe that alert rules were tested because the suite is green.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

REQUIRED = "REQUIRED_TEST_PROGRAMS"
PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "chromium": "chromium",
    "node": "nodejs",
    "openssl": "openssl",
    "make": "make",
}
"""Program -> its package in Debian and Ubuntu."""
_UNPACKED = Path(__file__).parent.parent / ".venv" / "prometheus" / "usr" / "bin"
"""Where `tools/fetch_prometheus` puts it, for machines on which nobody may install packages."""


def find_program(name: str) -> str | None:
    """The path of a program of `PACKAGES`."""
    assert name in PACKAGES, f"say in PACKAGES where {name} comes from"
    others = {"chromium": "chromium-browser"}
    return shutil.which(name) or shutil.which(others.get(name, name)) or shutil.which(name, path=_UNPACKED)


def missing_reason(name: str) -> str | None:
    """What to say where the program is missing; None where it is there."""
    if find_program(name) is not None:
        return None
    return f"{name} is not installed (Debian, Ubuntu: apt install {PACKAGES[name]})"


def is_required(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a missing program is a failure."""
    return name in environ.get(REQUIRED, "").split()
