"""Beginnings that many prompts share, and which of them are worth having in memory at the start. Pure.

request 1   n1 n2 n3 n4          uses: n1 3, n2 3, n3 2, n4 1
request 2   n1 n2 n3             at least 2 uses: n1 n2 n3 is one prefix to warm, of 3 blocks
request 3   n1 n2 x3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ultrafast.engine.warmup_plan import WarmPrefix


@dataclass(frozen=True, slots=True)
class Choice:
    """What is chosen.

    Attributes:
        min_uses: beginnings with fewer are left to the cache.
        max_tokens: of all chosen beginnings together, shared ones counted once.
    """

    min_uses: int = 3
    max_tokens: int = 65_536


def shared_prefixes(chains: Iterable[tuple[str, list[str]]], num_block_tokens: int, choice: Choice) -> list[WarmPrefix]:
    """Choose beginnings, the most valuable first.

    The value of a beginning is the tokens that it saved: uses times length. Names stand for everything before them, so a name is
    a node of a tree; chosen are nodes with enough uses none of whose successors has enough.

    `chains` has for each request whose KV it shares (only equal ones share any), and the names of its beginnings.
    """
    uses: Counter[str] = Counter()
    depth: dict[str, int] = {}
    parent: dict[str, str | None] = {}
    for (_, names), num_requests in _counted(chains).items():
        before = None
        for position, name in enumerate(names, start=1):
            uses[name] = max(uses[name], num_requests[position - 1])
            depth[name], parent[name] = position, before
            before = name
    enough = {name for name, count in uses.items() if count >= choice.min_uses}
    inner = {parent[name] for name in enough}
    ends = sorted(enough - inner, key=lambda name: (-uses[name] * depth[name], name))
    chosen: list[WarmPrefix] = []
    taken: set[str] = set()
    for end in ends:
        path = _path(end, parent)
        num_new = len(set(path) - taken)
        if (len(taken) + num_new) * num_block_tokens > choice.max_tokens:
            continue
        taken.update(path)
        chosen.append(WarmPrefix(name=end, num_tokens=depth[end] * num_block_tokens, num_uses=uses[end]))
    return chosen


def _counted(chains: Iterable[tuple[str, list[str]]]) -> dict[tuple[str, tuple[str, ...]], list[int]]:
    """For each different chain of a space: in how many requests of that space each of its names occurs."""
    per_space: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for space, names in chains:
        per_space.update((space, name) for name in names)
        seen.add((space, tuple(names)))
    return {(space, names): [per_space[space, name] for name in names] for space, names in sorted(seen)}


def _path(end: str, parent: dict[str, str | None]) -> list[str]:
    path, name = [], end
    while True:
        path.append(name)
        before = parent[name]
        if before is None:
            return path
        name = before
