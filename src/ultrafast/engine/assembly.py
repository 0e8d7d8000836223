"""What an engine child is made of: an executor and the scheduler that fits it. The child's own composition root."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ultrafast.core.draft import DraftPass
from ultrafast.engine.executor import Executor
from ultrafast.engine.fake import FakeExecutor
from ultrafast.engine.host import Parts, Progress
from ultrafast.engine.kvstore.file_hash import Identity, identify
from ultrafast.engine.kvstore.model_key import model_key
from ultrafast.engine.kvstore.setup import open_levels, say, why_none
from ultrafast.engine.kvstore.wanted import restore_prefixes
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.llama.machine import available_memory_bytes
from ultrafast.engine.llama.warmup import StepSample
from ultrafast.engine.messages import Configure
from ultrafast.engine.options import DEFAULT_STEP_TARGET_S, DraftFacts, EngineFacts, EngineOptions
from ultrafast.engine.paired import PairedExecutor
from ultrafast.engine.warmup_plan import read_warmup_plan
from ultrafast.kv.digest import DIGEST_BYTES, next_digest
from ultrafast.kv.ledger import num_sequences
from ultrafast.kv.level import LevelLimits
from ultrafast.sched.limits import DraftLimits, SchedulerLimits
from ultrafast.sched.paired import CHUNK_TOKENS, PairedScheduler, limits_alone
from ultrafast.sched.scheduler import Scheduler


def assemble_llama(configure: Configure, on_progress: Progress) -> Parts:
    """Load the model and warm it up. Raises what `LlamaExecutor.load` raises."""
    loaded = None
    with contextlib.suppress(OSError):  # loading says what is wrong with the file
        loaded = identify(Path(configure.options.model_path))
    executor = LlamaExecutor.load(configure.options, on_progress)
    # A replacement's weights are in the page cache, and clients wait: it starts cold and learns on the way.
    plan = read_warmup_plan(Path(configure.options.warmup_plan)) if configure.options.warmup_plan else None
    samples = [] if configure.is_replacement else executor.warm_up(on_progress, plan)
    options, facts = configure.options, replace(executor.facts, deterministic=configure.options.deterministic)
    alone = None if options.deterministic == "off" else executor.lone(options, CHUNK_TOKENS)
    draft_passes = [] if configure.is_replacement else executor.warm_up_draft()
    options, key = _keyed(options, facts, loaded)
    return _put_together(executor, alone, facts, options, key, samples, draft_passes)


def _keyed(options: EngineOptions, facts: EngineFacts, loaded: Identity | None) -> tuple[EngineOptions, bytes]:
    """The key of this engine's KV; without one, options that keep nothing beyond this process."""
    try:
        return options, model_key(options, facts, loaded)
    except OSError as error:
        say(f"the KV level on disk is off: {error}")
        return replace(options, kv_disk_bytes=0, kv_disk_path=None), bytes(DIGEST_BYTES)


def assemble_fake(configure: Configure, _: Progress) -> Parts:
    """A model-free engine, for tests: text without meaning, the real scheduler, the real process around it."""
    facts = fake_facts(configure.options)
    executor = FakeExecutor(
        capacity_tokens=facts.kv_capacity_tokens, max_step_tokens=facts.max_step_tokens, vocab_size=facts.vocab_size
    )
    key = next_digest(b"no model", [facts.vocab_size])
    alone = None
    if facts.deterministic != "off":
        alone = FakeExecutor(capacity_tokens=facts.max_request_tokens, max_step_tokens=CHUNK_TOKENS, vocab_size=facts.vocab_size)
    return _put_together(executor, alone, facts, configure.options, key)


def _put_together(
    executor: Executor,
    alone: Executor | None,
    facts: EngineFacts,
    options: EngineOptions,
    key: bytes,
    samples: Iterable[StepSample] = (),
    draft_passes: Sequence[DraftPass] = (),
) -> Parts:
    """Add the levels of KV and the scheduler; `alone` is for deterministic requests."""
    levels = open_levels(options, facts, key, available_memory_bytes())
    scheduler = make_scheduler(facts, options, levels.limits)
    for sample in samples:
        scheduler.cost.observe(sample.num_outputs, sample.num_prefill_tokens, sample.duration_s)
        if not sample.num_prefill_tokens:
            scheduler.step_times.observe(sample.num_outputs, sample.duration_s)
    scheduler.observe_draft_passes(draft_passes)
    if levels.limits is not None:
        scheduler.adopt(levels.found, time.monotonic())
    if options.warmup_plan is not None:
        restore_prefixes(scheduler, levels.found, Path(options.warmup_plan), time.monotonic(), why_none(options, levels))
    if alone is None:
        return Parts(executor, scheduler, facts, levels.disk)
    first_id = num_sequences(facts.max_num_running + facts.max_num_paused, facts.max_num_cached)
    paired = PairedScheduler(scheduler, Scheduler(limits_alone(scheduler.limits, first_id)))
    return Parts(PairedExecutor(executor, alone, first_id), paired, facts, levels.disk)


def make_scheduler(facts: EngineFacts, options: EngineOptions, levels: LevelLimits | None = None) -> Scheduler:
    """Limits are what the engine really got, never what was asked for."""
    limits = SchedulerLimits(
        kv_capacity_tokens=facts.kv_capacity_tokens,
        max_request_tokens=facts.max_request_tokens,
        max_step_tokens=facts.max_step_tokens,
        step_target_s=options.step_target_s or DEFAULT_STEP_TARGET_S,
        max_num_running=facts.max_num_running,
        max_num_paused=facts.max_num_paused,
        max_num_cached=facts.max_num_cached,
        max_cached_tokens=facts.max_cached_tokens,
        can_trim=facts.can_trim,
        can_interrupt=facts.can_interrupt,
        max_side_tokens=facts.max_side_tokens,
        idle_cell_s=facts.idle_cell_s,
        enable_prefix_cache=options.enable_prefix_cache,
        levels=levels,
        order=options.tier_order,
        tiers=options.tiers,
        enable_speculation=options.may_speculate,
        enable_reservation=options.enable_reservation,
        draft=_draft_limits(facts.draft),
    )
    return Scheduler(limits)


def _draft_limits(facts: DraftFacts | None) -> DraftLimits | None:
    if facts is None:
        return None
    return DraftLimits(facts.kv_capacity_tokens, facts.num_sequences, facts.max_request_tokens, facts.max_pass_tokens)


def fake_facts(options: EngineOptions) -> EngineFacts:
    """What the engine without a model says about itself."""
    capacity = options.kv_capacity_tokens or 65_536
    return EngineFacts(
        build="fake",
        model_description="no model",
        num_parameters=0,
        model_bytes=0,
        context_train_tokens=capacity,
        kv_capacity_tokens=capacity,
        max_request_tokens=min(options.max_request_tokens or capacity, capacity),
        max_step_tokens=options.max_step_tokens or 512,
        max_num_running=options.max_num_running,
        max_num_cached=options.max_num_cached,
        max_cached_tokens=options.max_cached_tokens or capacity // 4,
        num_threads=1,
        vocab_size=32_000,
        has_flash_attention=False,
        kv_type_k=options.kv_type_k,
        kv_type_v=options.kv_type_v,
        can_trim=True,
        is_recurrent=False,
        sliding_window=0,
        state_bytes_per_token=12,
        state_bytes_fixed=0,
        load_s=0.0,
        warmup_s=0.0,
        max_num_paused=options.max_num_paused or options.max_num_running,
        deterministic=options.deterministic,
    )
