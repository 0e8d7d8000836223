"""The engine process, once its log is set up (`ultrafast.engine_process`).

Descriptor `--fd` is a stream socket to the API process.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from ultrafast.engine.assembly import assemble_fake, assemble_llama
from ultrafast.engine.host import run_process

_ASSEMBLIES = {"llama": assemble_llama, "fake": assemble_fake}


def main(argv: Sequence[str]) -> NoReturn:
    """Run one engine until it is told to stop, or until nobody is there to tell it."""
    parser = argparse.ArgumentParser(prog="ultrafast.engine_process", description="internal: the engine process")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the API process")
    parser.add_argument("--executor", choices=sorted(_ASSEMBLIES), default="llama", help="fake: no model, for tests")
    arguments = parser.parse_args(argv)
    run_process(arguments.fd, _ASSEMBLIES[arguments.executor])
