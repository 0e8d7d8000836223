"""A budget of bytes: charged before anything is allocated, so that a level never holds more than it was given."""

from __future__ import annotations


class ByteBudget:
    """Bytes of one level. `used_bytes` <= `capacity_bytes` always, unless a measured size came out above its estimate."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0

    @property
    def num_free(self) -> int:
        return self.capacity_bytes - self.used_bytes

    def charge(self, num_bytes: int) -> None:
        """Take bytes; the caller has made sure that they are free."""
        self.used_bytes += num_bytes

    def refund(self, num_bytes: int) -> None:
        """Give bytes back."""
        assert num_bytes <= self.used_bytes, "more bytes given back than were charged"
        self.used_bytes -= num_bytes
