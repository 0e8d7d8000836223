"""The best that the machine has ever done: whoever wants a token sooner than that can never have it.

The cost model follows the moment: beside other work, and in the small chunks of a busy server, a token is dear. A verdict for
good must not rest on that, so nothing is forgotten here, and what is not known yet counts as free.
"""

from __future__ import annotations

import math

_FAR = 4
"""Chunks so many times as large as any that were seen may be cheaper by the token than one can tell: after a start without a
warm-up, beside streams, there are only small ones."""


class Fastest:
    """Lower bounds, from all steps since the start, those of the warm-up among them. Pure arithmetic."""

    __slots__ = ("_largest", "_output_s", "_token_s")

    def __init__(self) -> None:
        self._output_s = self._token_s = math.inf
        self._largest = 0

    def observe(self, num_outputs: int, num_prefill_tokens: int, duration_s: float) -> None:
        """A step ran; what else it did makes it a worse bound, never a wrong one."""
        if num_outputs and duration_s < self._output_s:
            self._output_s = duration_s
        if num_prefill_tokens:
            self._largest = max(self._largest, num_prefill_tokens)
            self._token_s = min(self._token_s, duration_s / num_prefill_tokens)

    @property
    def output_s(self) -> float:
        """What each token takes at least, seconds."""
        return self._output_s if self._output_s < math.inf else 0.0

    def first_token_s(self, num_prefill_tokens: int, max_step_tokens: int) -> float:
        """What the first token after so many of a prompt takes at least, seconds; `max_step_tokens`: that a step may compute."""
        is_known = self._largest > 0 and _FAR * self._largest >= min(num_prefill_tokens, max_step_tokens)
        return max(self.output_s, self._token_s * num_prefill_tokens if is_known else 0.0)
