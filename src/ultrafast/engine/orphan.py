"""No engine child outlives its API process: the second fence, by the kernel, behind the end of the connection.

The end of the connection is the first and portable fence; it needs a Python thread to run, which this one does not.
"""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (prctl(2), Linux; elsewhere nothing happens).

    A parent that died before this call is noticed by the end of the connection.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
