"""The engine process: `python -m ultrafast.engine.child --fd N`, started by `engine.client` and by nobody else.

Descriptor N is a stream socket to the API process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ultrafast.engine.assembly import assemble_fake, assemble_llama
from ultrafast.engine.host import run_process

_ASSEMBLIES = {"llama": assemble_llama, "fake": assemble_fake}


def main(argv: Sequence[str]) -> NoReturn:
    """Run one engine until it is told to stop, or until nobody is there to tell it."""
    parser = argparse.ArgumentParser(prog="ultrafast.engine.child", description="internal: the engine process")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the API process")
    parser.add_argument("--executor", choices=sorted(_ASSEMBLIES), default="llama", help="fake: no model, for tests")
    arguments = parser.parse_args(argv)
    run_process(arguments.fd, _ASSEMBLIES[arguments.executor])


if __name__ == "__main__":
    main(sys.argv[1:])
