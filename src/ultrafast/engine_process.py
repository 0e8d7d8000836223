"""The engine process: `python -m ultrafast.engine_process --fd N`, started by `engine.client` and by nobody else.

A composition root like `wiring`, for the other process: it gives the engine the log that the server has.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

from ultrafast.engine import child
from ultrafast.observe.logs import set_up_logging


def main(argv: Sequence[str]) -> NoReturn:
    """Set up the log, then run one engine; see `engine.child` for the other arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    log, rest = parser.parse_known_args(argv)
    set_up_logging(log.log_level, log.log_format)
    try:
        child.main(rest)
    except Exception:
        # Boundary: the process ends as it would without this, but what it says has the form of the log.
        logging.getLogger("ultrafast.engine").exception("the engine process cannot go on")
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
