"""What a call costs: token counts times the prices of the tier that served it."""

from __future__ import annotations

from dataclasses import dataclass

_PER_TOKENS = 1_000_000
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class TierPrice:
    """Prices of one service tier, in `currency` per million tokens, each at least 0.

    Attributes:
        prompt: prompt tokens that were computed.
        cached: prompt tokens that were found in the prefix cache.
        output: output tokens.
    """

    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    currency: str = "USD"

    @property
    def is_free(self) -> bool:
        return not (self.prompt or self.cached or self.output)

    def cost(self, num_prompt_tokens: int, num_cached_tokens: int, num_output_tokens: int) -> float:
        """Return the cost of a call; `num_cached_tokens` are among `num_prompt_tokens`. Rounded to 1e-10."""
        num_computed = max(0, num_prompt_tokens - num_cached_tokens)
        total = self.prompt * num_computed + self.cached * num_cached_tokens + self.output * num_output_tokens
        return round(total / _PER_TOKENS, _DIGITS)


FREE = TierPrice()
"""No price is set."""
