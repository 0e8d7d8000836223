"""What the scheduler remembers of steps that failed, so that the next plans get past the cause.

OUT_OF_KV although our count said it fits (fragmented cells): `slack` cells are treated as taken. Each failure halves the room
that is believed in; each good step gives some back.

INVALID, the batch was refused: the requests in it are tried in halves, alone in their steps, until the one at fault is alone.

    refused {a b c d}  ->  try {a b}: good  ->  try {c d}: refused  ->  try {c}: refused = c fails  ->  try {d}: good
"""

from __future__ import annotations

from collections.abc import Collection

from ultrafast.sched.live import LiveRequest

_MAX_OUT_OF_KV_IN_A_ROW = 64
_SLACK_DECAY = 32


class Faults:
    """Memory of failed steps.

    Attributes:
        slack: cells that are free by our count and not to be relied on.
    """

    def __init__(self) -> None:
        self.slack = 0
        self._num_out_of_kv = 0
        self._suspects: list[list[LiveRequest]] = []

    @property
    def has_any(self) -> bool:
        """A fault has not been forgotten yet: a step that succeeded is to be told of."""
        return bool(self.slack or self._suspects or self._num_out_of_kv)

    @property
    def is_isolating(self) -> bool:
        return bool(self._suspects)

    @property
    def is_out_of_kv_hopeless(self) -> bool:
        """Out of KV so often in a row that giving way has not helped: something must fail for progress."""
        return self._num_out_of_kv > _MAX_OUT_OF_KV_IN_A_ROW

    def suspects(self, running: Collection[LiveRequest]) -> list[LiveRequest]:
        """The requests that may be in the next step while a fault is being isolated; empty = no isolation any more."""
        while self._suspects:
            alive = [live for live in self._suspects[-1] if live in running]
            if alive:
                return alive
            self._suspects.pop()
        return []

    def step_succeeded(self, worked: list[LiveRequest]) -> None:
        """Forget a little; need not be called while there is nothing to forget."""
        self._num_out_of_kv = 0
        self.slack -= min(self.slack, max(1, self.slack // _SLACK_DECAY))
        self._clear(worked)

    def out_of_kv(self, num_free: int, num_tokens: int) -> None:
        """A step of `num_tokens` did not fit although `num_free` cells were free by our count."""
        self._num_out_of_kv += 1
        self.slack = max(0, num_free - num_tokens // 2)

    def invalid(self, worked: list[LiveRequest]) -> LiveRequest | None:
        """A step with these requests was refused. Returns the one at fault once it is known."""
        self._clear(worked)
        if len(worked) == 1:
            return worked[0]
        middle = len(worked) // 2
        self._suspects += [half for half in (worked[middle:], worked[:middle]) if half]
        return None

    def _clear(self, worked: list[LiveRequest]) -> None:
        if self._suspects:
            rest = [live for live in self._suspects.pop() if live not in worked]
            if rest:
                self._suspects.append(rest)
