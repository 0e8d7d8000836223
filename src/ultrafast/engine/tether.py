"""Ties an engine child to its API process: what it leaves to the parent, and that it never outlives it.

Ctrl-C and SIGTERM reach a whole process group or service. The child ignores both: the API process drains first and then
decides. Its fences against becoming an orphan are the end of the connection (portable; needs a Python thread to run) and
the kernel's (Linux; needs nothing).
"""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tether_to_parent() -> None:
    """Prepare the signals of a child. First thing on its main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (prctl(2); elsewhere nothing happens).

    A parent that died before this call is noticed by the end of the connection.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
