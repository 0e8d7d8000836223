"""The requests of a simulation, in order of arrival: from a trace, or drawn from classes of traffic. Pure.

Only lengths and what is shared matter, so tokens are made up: each piece of a prompt that others share is a run of one number,
and what nobody shares is a run of the request's own. So prompts agree exactly where the traffic says that they do, and a million
of them cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ultrafast.bench.arrivals import open_loop
from ultrafast.bench.lengths import parse_lengths
from ultrafast.bench.traces import TraceEntry
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import ServiceTier, parse_tier

_CLASS_KEY, _LENGTH_KEY, _TIER_KEY, _ARRIVAL_KEY = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request.

    Attributes:
        due_s: arrival, seconds from the start of the simulation.
        num_output_tokens: what the model will say, if nothing cuts it short; the scheduler does not know it.
        blocks: names of shared pieces of the prompt, in order, `block_tokens` each; the rest of it is its own.
        cancel_after_s: the client leaves so long after its arrival, if it still waits; None = it never does.
        ttft_s: its own objective for the first token, seconds; None = its tier's.
    """

    index: int
    due_s: float
    tier: ServiceTier
    num_prompt_tokens: int
    num_output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    cancel_after_s: float | None = None
    ttft_s: float | None = None

    def prompt_tokens(self) -> tuple[int, ...]:
        """Made-up token ids: block b is a run of 2b + 1, the rest a run of an even number that no other request has."""
        shared = tuple(2 * block + 1 for block in self.blocks for _ in range(self.block_tokens))[: self.num_prompt_tokens]
        return shared + (2 * self.index + 2,) * (self.num_prompt_tokens - len(shared))


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """A kind of traffic: its tier, its share of the requests, and distributions of its lengths (see `bench.lengths`)."""

    tier: ServiceTier
    share: float
    input_len: str
    output_len: str


def parse_class(text: str) -> TrafficClass:
    """Read `ultrafast=0.7:128/64` or `flex=0.3:lognormal:2048,0.5,8192/uniform:64-256`.

    Raises:
        ConfigError: it is not of that form.
    """
    head, _, lengths = text.partition(":")
    name, _, share = head.partition("=")
    input_len, _, output_len = lengths.partition("/")
    tier = parse_tier(name.strip())
    try:
        if tier is None or float(share) <= 0:
            raise ValueError(head)
        parse_lengths(input_len), parse_lengths(output_len)
        return TrafficClass(tier, float(share), input_len, output_len)
    except (ValueError, ConfigError) as error:
        raise ConfigError(
            f"{text!r} is no class of traffic.",
            hint="Write TIER=SHARE:PROMPT/OUTPUT, for example ultrafast=0.7:128/64; lengths as in `ultrafast bench`.",
        ) from error


@dataclass(frozen=True, slots=True)
class Mix:
    """Synthetic traffic.

    Attributes:
        arrival: poisson, gamma or constant.
        num_shared_tokens: a beginning that `shared_share` of the prompts have in common, before their own tokens.
    """

    classes: tuple[TrafficClass, ...]
    num_requests: int
    rate_per_s: float
    arrival: str = "poisson"
    burstiness: float = 1.0
    num_shared_tokens: int = 0
    shared_share: float = 1.0
    seed: int = 0

    def requests(self) -> Iterator[SimRequest]:
        """Draw them: the same ones each time."""
        due = open_loop(self.arrival, self.rate_per_s, self.burstiness, self.seed + _ARRIVAL_KEY)
        generator = np.random.default_rng([self.seed, _LENGTH_KEY])
        chooser = np.random.default_rng([self.seed, _CLASS_KEY])
        total = sum(one.share for one in self.classes)
        edges = np.cumsum([one.share / total for one in self.classes])
        draws = [(one.tier, parse_lengths(one.input_len), parse_lengths(one.output_len)) for one in self.classes]
        for index in range(self.num_requests):
            tier, draw_input, draw_output = draws[min(int(np.searchsorted(edges, chooser.random())), len(draws) - 1)]
            num_prompt, num_output = draw_input(generator), draw_output(generator)
            is_shared = self.num_shared_tokens > 0 and chooser.random() < self.shared_share
            shared = self.num_shared_tokens if is_shared else 0
            blocks = (0,) if shared else ()
            yield SimRequest(index, next(due), tier, shared + num_prompt, num_output, blocks, shared)


def from_trace(entries: Sequence[TraceEntry], tiers: Sequence[str | None]) -> list[SimRequest]:
    """Recorded requests; `tiers` (one per entry, or None) win over the tiers in the trace.

    Raises:
        ConfigError: a tier that we do not have.
    """
    numbers: dict[int, int] = {}
    requests = []
    for index, (entry, given) in enumerate(zip(entries, tiers, strict=True)):
        name = given or entry.tier or ServiceTier.DEFAULT
        tier = parse_tier(name)
        if tier is None:
            raise ConfigError(f"Request {index + 1} of the trace has the tier {name!r}.", hint="Give tiers with --tier-mix.")
        blocks = tuple(numbers.setdefault(block, len(numbers)) for block in entry.blocks)
        requests.append(
            SimRequest(index, entry.due_s, tier, entry.num_prompt_tokens, entry.num_output_tokens, blocks, entry.num_block_tokens)
        )
    return requests
