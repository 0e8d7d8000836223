"""Memory for the bytes of one run of KV."""

from __future__ import annotations

import contextlib
import mmap
import sys


def run_buffer(num_bytes: int) -> mmap.mmap:
    """Return memory of `num_bytes` > 0: a mapping of its own.

    It goes back to the system when the run is dropped, whatever else was allocated meanwhile. In huge pages where there are some:
    who fills a fresh mapping mostly waits for page faults, and running requests wait for who saves. 512 tokens of the bundled
    model took 1.4 ms instead of 4.5, and 6.7 in shared memory, which `mmap` takes if not told otherwise.
    """
    buffer = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without them
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer
