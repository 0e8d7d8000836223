"""Mixed load in waves, for long runs: all tiers, shared beginnings, own objectives, clients that leave, too long prompts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from ultrafast.bench.simulate.load import SimRequest
from ultrafast.core.tiers import ServiceTier

NUM_PREFIXES = 20
BLOCK_TOKENS = 48
WAVE = 1000
"""Requests per wave; waves alternate between an idle, a busy and an overloaded engine."""
OWN_TTFTS_S = (0.2, 1.0, 10.0)
WAVE_LOADS = (0.5, 0.9, 1.0, 1.6, 0.7, 3.0)
_TIERS = (ServiceTier.ULTRAFAST, ServiceTier.PRIORITY, ServiceTier.DEFAULT, ServiceTier.FLEX)
_MEDIANS = {
    ServiceTier.ULTRAFAST: (60, 12),
    ServiceTier.PRIORITY: (90, 16),
    ServiceTier.DEFAULT: (120, 16),
    ServiceTier.FLEX: (400, 24),
}


def mixed_load(num_requests: int, rate_per_s: float, seed: int, *, too_long: int) -> Iterator[SimRequest]:
    """`rate_per_s` fills the engine about once; `too_long` is more than it takes."""
    rng = random.Random(seed)
    due_s = 0.0
    for index in itertools.islice(itertools.count(), num_requests):
        load = WAVE_LOADS[index // WAVE % len(WAVE_LOADS)]
        due_s += rng.expovariate(rate_per_s * load)
        tier = rng.choices(_TIERS, (4, 2, 3, 1))[0]
        num_prompt, num_output = (max(1, round(median * rng.lognormvariate(0, 0.7))) for median in _MEDIANS[tier])
        blocks: tuple[int, ...] = ()
        if rng.random() < 0.4:
            first = rng.randrange(NUM_PREFIXES)
            # A chain of its own for each first block, so that beginnings agree for one to four blocks.
            blocks = tuple(first * 8 + step for step in range(rng.randint(1, 4)))
            num_prompt += BLOCK_TOKENS * len(blocks)
        if rng.random() < 0.001:
            num_prompt = too_long
        cancel_after_s = rng.expovariate(5.0) if rng.random() < 0.03 else None
        ttft_s = rng.choice(OWN_TTFTS_S) if rng.random() < 0.2 else None
        yield SimRequest(index, due_s, tier, num_prompt, num_output, blocks, BLOCK_TOKENS, cancel_after_s, ttft_s)
