"""A warm-up plan in the engine: read or refused; its shapes cut to size; its prefixes found on disk and read."""

import msgspec
import pytest

from ultrafast.core.errors import ConfigError
from ultrafast.core.step import ReadRun
from ultrafast.engine.assembly import assemble_fake
from ultrafast.engine.kvstore.wanted import restore_prefixes, wanted_digests
from ultrafast.engine.llama.warmup import planned_shapes
from ultrafast.engine.messages import Configure
from ultrafast.engine.options import EngineOptions
from ultrafast.engine.warmup_plan import WarmPrefix, WarmupPlan, read_warmup_plan
from ultrafast.kv.digest import next_digest, root_digest
from ultrafast.kv.level import LevelLimits
from ultrafast.kv.names import PrefixNames
from ultrafast.kv.run import RUN_TOKENS, FoundRun
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

KEY = b"k" * 32
NAMES = PrefixNames(KEY)
STORY, OTHER = list(range(3 * RUN_TOKENS + 40)), list(range(5000, 5000 + RUN_TOKENS))


def plan(prefixes=(), chunks=(100,), decodes=(3,), key_file=None, **more):
    return WarmupPlan(
        chunks=list(chunks),
        decodes=list(decodes),
        prefixes=list(prefixes),
        key_file=key_file,
        num_requests=1,
        period_s=1.0,
        **more,
    )


def prefix(tokens, num_runs):
    return WarmPrefix(name=NAMES.of(tokens)[num_runs - 1], num_tokens=num_runs * RUN_TOKENS, num_uses=5)


def runs_of(tokens, namespace=""):
    parent, found = root_digest(b"model", namespace), []
    for start in range(0, len(tokens), RUN_TOKENS):
        part = tuple(tokens[start : start + RUN_TOKENS])
        digest = next_digest(parent, part)
        found.append(FoundRun(parent, digest, start, part, 1000))
        parent = digest
    return found


def test_runs_are_found_by_name_each_after_its_predecessors():
    story, other = runs_of(STORY), runs_of(OTHER)
    digests, num_found = wanted_digests([*reversed(story), *other], [prefix(OTHER, 1), prefix(STORY, 2)], NAMES)
    assert digests == [other[0].digest, story[0].digest, story[1].digest]
    assert num_found == 2


def test_a_beginning_of_several_tenants_is_read_for_each():
    alice, bob = runs_of(OTHER, "alice"), runs_of(OTHER, "bob")
    digests, num_found = wanted_digests(alice + bob, [prefix(OTHER, 1)], NAMES)
    assert sorted(digests) == sorted([alice[0].digest, bob[0].digest])
    assert num_found == 1


def test_what_is_not_there_or_named_under_another_key_is_not_found():
    assert wanted_digests(runs_of(OTHER), [prefix(STORY, 1)], NAMES) == ([], 0)
    assert wanted_digests(runs_of(STORY), [prefix(STORY, 1)], PrefixNames(b"x" * 32)) == ([], 0)


def test_a_chain_with_a_hole_is_not_read():
    story = runs_of(STORY)
    assert wanted_digests([story[0], story[2]], [prefix(STORY, 3)], NAMES) == ([], 0)


def scheduler(found, host_bytes=10_000):
    levels = LevelLimits(host_bytes, disk_bytes=10**6, model_key=b"model")
    made = Scheduler(SchedulerLimits(4096, 4096, 256, 0.05, levels=levels))
    made.adopt(found, 0.0)
    return made


def restore(tmp_path, made, found, wanted):
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "plan").write_bytes(msgspec.json.encode(plan(wanted, key_file=str(tmp_path / "key"))))
    restore_prefixes(made, found, tmp_path / "plan", 0.0)
    return [op for op in made.plan(0.0).kv_ops if isinstance(op, ReadRun)]


def test_the_prefixes_of_a_plan_are_read_from_disk(tmp_path, caplog):
    caplog.set_level("INFO")
    found = runs_of(STORY)
    made = scheduler(found)
    reads = restore(tmp_path, made, found, [prefix(STORY, 2), prefix(OTHER, 1)])
    assert [read.digest for read in reads] == [run.digest for run in found[:2]]
    assert "1 of 2 prefixes are on disk; 256 tokens" in caplog.text


def test_no_more_is_read_than_host_memory_holds(tmp_path):
    found = runs_of(STORY)
    reads = restore(tmp_path, scheduler(found, host_bytes=2500), found, [prefix(STORY, 3)])
    assert [read.start for read in reads] == [0, RUN_TOKENS]


def test_a_key_that_is_gone_is_said_and_stops_nothing(tmp_path, caplog):
    (tmp_path / "plan").write_bytes(msgspec.json.encode(plan([prefix(STORY, 1)], key_file=str(tmp_path / "none"))))
    made = scheduler(runs_of(STORY))
    restore_prefixes(made, runs_of(STORY), tmp_path / "plan", 0.0)
    assert "no prefix of the warm-up plan is read" in caplog.text


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"kv_host_bytes": 0}, "engine.kv_host_bytes"),
        ({"kv_host_bytes": 1 << 20}, "engine.kv_disk_bytes"),
        ({"kv_host_bytes": 1 << 20, "enable_prefix_cache": False}, "engine.enable_prefix_cache"),
    ],
)
def test_a_plan_whose_prefixes_nothing_can_hold_says_so_at_the_start(tmp_path, caplog, settings, reason):
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "plan").write_bytes(msgspec.json.encode(plan([prefix(STORY, 1)], key_file=str(tmp_path / "key"))))
    assemble_fake(Configure(EngineOptions("model", warmup_plan=str(tmp_path / "plan"), **settings)), lambda *_: None)
    assert "none of the 1 prefixes of the warm-up plan is read" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("content", [b"{}", b"x", msgspec.json.encode(plan(chunks=[0])), msgspec.json.encode(plan(version=9))])
def test_what_is_no_plan_is_refused(tmp_path, content):
    (tmp_path / "plan").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be used") as refused:
        read_warmup_plan(tmp_path / "plan")
    assert refused.value.param == "engine.warmup_plan"


def test_planned_shapes_are_cut_to_the_engine_and_have_what_the_cost_model_needs():
    shapes = planned_shapes(plan(chunks=[100, 9000], decodes=[3, 99]), step_tokens=512, max_decodes=8)
    assert shapes == [(0, 16), (0, 32), (0, 64), (0, 100), (0, 512), (1, 16), (3, 16), (8, 16), (1, 0), (3, 0), (8, 0)]


def test_planned_shapes_of_a_tiny_engine_fit_its_batch():
    assert planned_shapes(plan(), step_tokens=16, max_decodes=4) == [(0, 16), (1, 0), (3, 0)]
