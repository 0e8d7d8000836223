"""How much dearer a token gets as the KV pool fills: a slope, learnt slowly beside the cost model, which learns fast.

    seconds per token
       |            . * .                 attention reads, for each token of a step, the cells in use (one pool for all sequences)
       |     . * .
       | * .    slope
       +------------------- cells in use

The fast fit forgets within some twenty steps, in which the pool hardly changes: it always knows the height at the place where it
is, never the slope. With the slope it need not run after a prompt that gets longer.
"""

from __future__ import annotations

_FORGET = 0.998
"""Some five hundred steps: what a cell costs is a property of model and machine, not of the moment."""
_RIDGE_TOKENS = 200.0
"""While the cells in use varied less than this, what varied with them is taken for noise."""


class Slope:
    """Weighted linear regression with forgetting, shrunk to 0 while there is nothing to see. Pure arithmetic."""

    __slots__ = ("_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, num_kv_tokens: int, token_s: float, weight: float) -> None:
        """A step's tokens took so long each while so many cells were in use; `weight`: how reliable that is."""
        weighted = weight * num_kv_tokens
        self._weight = self._weight * _FORGET + weight
        self._x = self._x * _FORGET + weighted
        self._y = self._y * _FORGET + weight * token_s
        self._xx = self._xx * _FORGET + weighted * num_kv_tokens
        self._xy = self._xy * _FORGET + weighted * token_s

    @property
    def value(self) -> float:
        """Seconds per token and cell; never negative, and never so much that an empty pool would cost nothing."""
        if self._weight <= 0:
            return 0.0
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = max(0.0, self._xx / self._weight - mean_x * mean_x)
        slope = (self._xy / self._weight - mean_x * mean_y) / (variance + _RIDGE_TOKENS * _RIDGE_TOKENS)
        highest = 0.8 * mean_y / mean_x if mean_x > 0 else 0.0
        return max(0.0, min(slope, highest))
