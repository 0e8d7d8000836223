"""Finds the prefixes of a warm-up plan among the runs on disk, and has them read into host memory.

The plan names beginnings by keyed hashes of their tokens; the runs on disk carry their tokens. So every run is named under the
same key, along its chain, and the names are compared. A beginning that several tenants have is read once for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ultrafast.core.errors import ConfigError
from ultrafast.engine.kvstore.setup import say, tell
from ultrafast.engine.warmup_plan import WarmPrefix, read_warmup_plan
from ultrafast.kv.names import KEY_BYTES, PrefixNames
from ultrafast.kv.run import RUN_TOKENS, FoundRun
from ultrafast.sched.scheduler import Scheduler


def restore_prefixes(
    scheduler: Scheduler, found: Sequence[FoundRun], plan_path: Path, now: float, why_none: str | None = None
) -> None:
    """Order the reads. What cannot be had is said, and never stops a start: it is computed when it is asked for.

    Args:
        scheduler: has adopted the runs.
        found: on disk.
        plan_path: file of the plan.
        now: seconds.
        why_none: why no run can be read at all; None = it can.
    """
    plan = read_warmup_plan(plan_path)
    if not plan.prefixes or plan.key_file is None:
        return
    if why_none is not None:
        say(f"none of the {len(plan.prefixes)} prefixes of the warm-up plan is read: {why_none}")
        return
    try:
        names = PrefixNames(_read_key(Path(plan.key_file)))
    except ConfigError as error:
        say(f"no prefix of the warm-up plan is read: {error.message}")
        return
    digests, num_found = wanted_digests(found, plan.prefixes, names)
    num_tokens = scheduler.warm(digests, now)
    tell(f"warm-up plan: {num_found} of {len(plan.prefixes)} prefixes are on disk; {num_tokens} tokens are read into memory")


def wanted_digests(found: Sequence[FoundRun], prefixes: Sequence[WarmPrefix], names: PrefixNames) -> tuple[list[bytes], int]:
    """Runs to read, in the order of the plan, each after its predecessors and once; and how many of the prefixes are there."""
    by_digest = {run.digest: run for run in found}
    by_name: dict[str, list[FoundRun]] = {}
    named: dict[bytes, bytes] = {}
    for run in sorted(found, key=lambda run: run.start):
        before = named.get(run.parent) if run.start else b""
        if before is not None and len(run.tokens) == RUN_TOKENS:
            named[run.digest] = names.after(before, run.tokens)
            by_name.setdefault(named[run.digest].hex(), []).append(run)
    wanted: dict[bytes, None] = {}
    num_found = 0
    for prefix in prefixes:
        ends = by_name.get(prefix.name, [])
        num_found += bool(ends)
        for end in ends:
            wanted.update(dict.fromkeys(_chain(end, by_digest)))
    return list(wanted), num_found


def _chain(end: FoundRun, by_digest: dict[bytes, FoundRun]) -> list[bytes]:
    chain = [end.digest]
    while (run := by_digest[chain[-1]]).start:
        chain.append(run.parent)
    return chain[::-1]


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"its key cannot be read: {error}") from error
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} is no key")
    return key
