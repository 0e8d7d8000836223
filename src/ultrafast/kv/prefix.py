"""How far two token lists agree: the one inner loop of prefix matching."""

from __future__ import annotations

_STRIDE = 128
"""Tokens compared at once. List slices compare in C; only the stride that differs is walked in Python."""


def common_prefix(a: list[int], a_start: int, b: list[int], b_start: int, limit: int) -> int:
    """Count equal tokens of `a` from `a_start` and `b` from `b_start`, at most `limit` and never past an end."""
    limit = min(limit, len(a) - a_start, len(b) - b_start)
    done = 0
    while done < limit:
        size = min(_STRIDE, limit - done)
        left = a[a_start + done : a_start + done + size]
        right = b[b_start + done : b_start + done + size]
        if left != right:
            return done + next(i for i in range(size) if left[i] != right[i])
        done += size
    return limit
