"""Which memory goes to huge pages."""

from __future__ import annotations

from ultrafast.engine.settle import HUGE_PAGE_BYTES, heap_areas

MAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 1 /usr/bin/python3
01000000-01a00000 rw-p 00000000 fe:00 1 /usr/bin/python3
02100000-02900000 rw-p 00000000 00:00 0 [heap]
7f0000100000-7f00002fffff rw-p 00000000 00:00 0
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
7f0001000000-7f0001800000 ---p 00000000 00:00 0
7f0002000000-7f0002800000 rw-s 00000000 00:05 7 /dev/zero (deleted)
7ffd00000000-7ffd00800000 rw-p 00000000 00:00 0 [stack]
"""


def test_only_whole_huge_pages_of_private_anonymous_memory() -> None:
    areas = list(heap_areas(MAPS.splitlines()))
    assert areas == [(0x02200000, 3 * HUGE_PAGE_BYTES), (0x7F0000400000, 2 * HUGE_PAGE_BYTES)]
