"""Host memory and disk as bookkeeping: what is found, what is charged, what goes first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.core.step import DeleteRun, DropRun, KvMoved, KvOp, ReadRun, SaveRun, WriteRun
from ultrafast.kv.digest import next_digest, root_digest
from ultrafast.kv.gate import FORGET_AFTER_S, Bandwidths, Way, worth_fetching
from ultrafast.kv.index import Part
from ultrafast.kv.level import FILE_OVERHEAD_BYTES, FILE_TOKEN_BYTES, RUN_OVERHEAD_BYTES, LevelLimits
from ultrafast.kv.levels import KvLevels
from ultrafast.kv.run import RUN_TOKENS, FoundRun, Place, Run

RUN_BYTES = RUN_TOKENS * 10 + RUN_OVERHEAD_BYTES
FILE_BYTES = RUN_BYTES + FILE_OVERHEAD_BYTES + FILE_TOKEN_BYTES * RUN_TOKENS


class Engine:
    """Obeys at once: the bytes of each level as they would be."""

    def __init__(self, *, host_runs: int = 10, disk_runs: int = 0, ttl_s: float = 1e9) -> None:
        self.ops: list[KvOp] = []
        limits = LevelLimits(host_runs * RUN_BYTES, disk_runs * FILE_BYTES, ttl_s=ttl_s, bytes_per_token=10)
        self.levels = KvLevels(limits, self.ops.append)
        self.now = 0.0

    def save(self, tokens: list[int], namespace: str = "") -> int:
        """Save a whole sequence; returns how many runs were new."""
        missing = self.levels.unsaved(tokens, namespace)
        done = sum(self.levels.save(piece, 0, tokens, self.now) for piece in missing)
        self.obey()
        return done

    def obey(self, *, is_ok: bool = True) -> None:
        self.levels.writes.order(self.now, is_busy=False)
        ways = {SaveRun: "save", WriteRun: "write", ReadRun: "read"}
        results = [KvMoved(op.run_id, ways[type(op)], is_ok, self._size(op.run_id)) for op in self.ops if type(op) in ways]  # type: ignore[union-attr, index]
        self.ops.clear()
        self.levels.moved(results, self.now)
        if self.ops or self.levels.writes.can_order:
            self.obey(is_ok=is_ok)

    def _size(self, run_id: int) -> int:
        run = self.levels.holdings.index.get(run_id)
        return run.num_bytes if run is not None else 1

    def found(self, tokens: list[int], namespace: str = "", start: int = 0) -> int:
        parts = self.levels.find(tokens, namespace, start, len(tokens))
        return parts[-1].end if parts else 0


def story(name: int, length: int = 300) -> list[int]:
    return [name * 1000 + position for position in range(length)]


def test_digests_stand_for_everything_before() -> None:
    roots = {root_digest(key, namespace) for key in (b"a" * 16, b"b" * 16) for namespace in ("", "x")}
    assert len(roots) == 4
    root = root_digest(b"a" * 16, "")
    assert next_digest(next_digest(root, [1]), [2]) != next_digest(next_digest(root, [2]), [2])
    assert next_digest(root, (1, 2)) == next_digest(root, [1, 2])


def test_what_was_saved_is_found_to_the_token() -> None:
    engine = Engine()
    assert engine.save(story(1)) == 3
    assert engine.found(story(1)) == 300
    assert engine.found(story(1)[:200]) == 200
    assert engine.found([*story(1)[:290], 7, 7]) == 290
    assert engine.found(story(2)) == 0
    assert engine.found(story(1), "other") == 0


def test_only_what_the_device_lacks_is_offered() -> None:
    engine = Engine()
    engine.save(story(1))
    parts = engine.levels.find(story(1), "", 150, 299)
    assert [(part.begin, part.end) for part in parts] == [(150, 256), (256, 299)]
    assert engine.levels.find(story(1), "", 299, 299) == []


def test_a_longer_end_replaces_the_shorter_one_and_nothing_is_saved_twice() -> None:
    engine = Engine()
    engine.save(story(1, 280))
    assert engine.save(story(1, 280)) == 0
    assert engine.save(story(1, 300)) == 1
    assert len(engine.levels.holdings.index) == 3
    assert engine.save(story(1, 290)) == 0


def test_ends_go_before_beginnings_and_the_beginning_of_a_new_chain_is_safe() -> None:
    engine = Engine(host_runs=4)
    engine.save(story(1))
    engine.now = 10.0
    engine.save(story(2))
    assert engine.found(story(2)) == 300
    assert engine.found(story(1)) in (0, 128)
    tight = Engine(host_runs=2)
    tight.save(story(1))
    assert tight.found(story(1)) == 256


def test_what_is_used_stays_and_what_is_kept_stays_whatever_comes() -> None:
    engine = Engine(host_runs=6)
    engine.save(story(1))
    engine.levels.holdings.keep(story(1), "")
    for name in range(2, 9):
        engine.now += 1000.0
        engine.save(story(name))
    assert engine.found(story(1)) == 300
    engine.levels.holdings.clear(with_disk=True)
    assert engine.found(story(1)) == 0


def test_hits_outweigh_age() -> None:
    engine = Engine(host_runs=6)
    engine.save(story(1))
    for _ in range(5):
        engine.levels.holdings.used(engine.levels.find(story(1), "", 0, 300), 0.0)
    engine.now = 100.0
    engine.save(story(2))
    engine.now = 110.0
    engine.save(story(3))
    assert engine.found(story(1)) == 300
    assert engine.found(story(2)) < 300


def test_too_old_is_dropped_everywhere() -> None:
    engine = Engine(disk_runs=10, ttl_s=60.0)
    engine.save(story(1))
    engine.levels.holdings.expire(60.0)
    assert engine.found(story(1)) == 300
    engine.levels.holdings.expire(61.0)
    assert engine.found(story(1)) == 0
    assert {type(op) for op in engine.ops} == {DropRun, DeleteRun}
    assert engine.levels.holdings.host.budget.used_bytes == engine.levels.holdings.disk.budget.used_bytes == 0


def test_what_host_memory_loses_the_disk_still_has() -> None:
    engine = Engine(host_runs=3, disk_runs=10)
    engine.save(story(1))
    engine.now = 10.0
    engine.save(story(2))
    parts = engine.levels.find(story(1), "", 0, 300)
    assert parts[-1].end == 300
    assert {part.run.host for part in parts} == {Place.ABSENT}
    for part in parts:
        assert engine.levels.fetch(part, engine.now)
    assert {part.run.host for part in parts} == {Place.ARRIVING}
    engine.obey()
    assert {part.run.host for part in parts} == {Place.PRESENT}
    assert {part.run.num_pins for part in parts} == {0}


def test_what_is_still_on_its_way_to_the_disk_is_not_told_as_there() -> None:
    engine = Engine(disk_runs=10)
    missing = engine.levels.unsaved(story(1), "")
    for piece in missing:
        engine.levels.save(piece, 0, story(1), engine.now)
    engine.levels.writes.order(engine.now, is_busy=False)
    before = engine.levels.stats()
    assert before.disk_bytes == 3 * FILE_BYTES - (3 * RUN_TOKENS - 300) * (10 + FILE_TOKEN_BYTES), "charged before it comes"
    assert (before.num_host_tokens, before.num_disk_tokens) == (300, 0)
    engine.obey(is_ok=True)
    assert engine.levels.stats().num_disk_tokens == 300


def test_a_read_that_fails_is_a_miss_from_then_on() -> None:
    engine = Engine(host_runs=3, disk_runs=10)
    engine.levels.adopt([_found(story(1, 128))], 0.0)
    [part] = engine.levels.find(story(1, 128), "", 0, 128)
    engine.levels.fetch(part, 0.0)
    engine.obey(is_ok=False)
    assert engine.found(story(1, 128)) == 0
    assert engine.levels.holdings.host.budget.used_bytes == engine.levels.holdings.disk.budget.used_bytes == 0


def test_what_is_found_at_the_start_fits_the_quota_oldest_first() -> None:
    engine = Engine(disk_runs=2)
    engine.levels.adopt([_found(story(name, 128), age_s=10.0 * name) for name in (1, 2, 3)], 0.0)
    assert [engine.found(story(name, 128)) for name in (1, 2, 3)] == [128, 128, 0]
    assert [type(op) for op in engine.ops] == [DeleteRun]


def test_stale_results_are_ignored() -> None:
    engine = Engine(disk_runs=10)
    engine.levels.moved([KvMoved(99, way, True, 10) for way in ("save", "load", "write", "read")], 0.0)
    assert len(engine.levels.holdings.index) == 0


def _found(tokens: list[int], age_s: float = 0.0) -> FoundRun:
    parent = root_digest(b"", "")
    return FoundRun(parent, next_digest(parent, tokens), 0, tuple(tokens), RUN_BYTES, age_s)


# -- the gate -----------------------------------------------------------------------------------------------------------------


def _part(place: Place = Place.PRESENT) -> Part:
    run = Run(1, b"", b"", 0, tuple(range(128)), 1_000_000)
    run.host = place
    return Part(run, 0, 128)


def test_the_gate_compares_measured_bandwidth_with_measured_speed() -> None:
    bandwidths = Bandwidths()
    bandwidths.observe(Way.LOAD, 1_000_000, 0.010, 0.0)
    assert worth_fetching([_part()], bandwidths, 0.001, 0.0)
    assert not worth_fetching([_part()], bandwidths, 0.0001, 0.0)
    assert worth_fetching([_part()], bandwidths, None, 0.0), "nothing is known yet: try"
    bandwidths.observe(Way.READ, 1_000_000, 1.0, 0.0)
    assert not worth_fetching([_part(Place.ABSENT)], bandwidths, 0.001, 0.0)


def test_the_first_bad_part_ends_the_chain() -> None:
    bandwidths = Bandwidths()
    bandwidths.observe(Way.LOAD, 1_000_000, 0.010, 0.0)
    bandwidths.observe(Way.READ, 1_000_000, 1.0, 0.0)
    assert len(worth_fetching([_part(), _part(Place.ABSENT), _part()], bandwidths, 0.001, 0.0)) == 1


def test_a_slow_way_gets_another_chance_later() -> None:
    bandwidths = Bandwidths()
    bandwidths.observe(Way.READ, 1_000_000, 10.0, 0.0)
    assert not worth_fetching([_part(Place.ABSENT)], bandwidths, 0.001, FORGET_AFTER_S)
    assert worth_fetching([_part(Place.ABSENT)], bandwidths, 0.001, FORGET_AFTER_S + 1)


# -- random lives -------------------------------------------------------------------------------------------------------------

_STORIES = st.tuples(st.integers(1, 4), st.integers(1, 400))
_ACTIONS = st.one_of(
    st.tuples(st.just("save"), _STORIES),
    st.tuples(st.just("use"), _STORIES),
    st.tuples(st.just("fetch"), _STORIES),
    st.tuples(st.just("wait"), st.integers(1, 500)),
    st.tuples(st.just("break"), st.none()),
    st.tuples(st.just("clear"), st.booleans()),
)


def test_a_disk_that_fails_takes_whole_chains_with_it() -> None:
    engine = Engine(host_runs=8, disk_runs=8)
    engine.save(story(1, 300))
    engine.levels.holdings.make_host_room(8 * RUN_BYTES, 0.0)
    engine.obey()
    assert engine.levels.find(story(1, 300), "", 0, 300), "on disk only"
    engine.levels.moved([KvMoved(99, "write", False, is_broken=True)], 0.0)
    assert len(engine.levels.holdings.index) == len(engine.levels.holdings.disk) == 0
    assert not engine.levels.writes.is_on


def test_a_deletion_that_fails_switches_the_disk_off_and_a_read_under_way_is_given_back() -> None:
    engine = Engine(host_runs=8, disk_runs=8)
    engine.save(story(1, 300))
    engine.levels.adopt([_found(story(2, 128))], 0.0)
    [part] = engine.levels.find(story(2, 128), "", 0, 128)
    engine.levels.fetch(part, 0.0)
    in_host = engine.levels.find(story(1), "", 0, 300)[0].run
    engine.levels.moved([KvMoved(in_host.run_id, "delete", False, is_broken=True)], 0.0)
    assert not engine.levels.stats().is_disk_on
    assert engine.levels.stats().disk_bytes == 0
    engine.levels.moved([KvMoved(part.run.run_id, "read", False, is_broken=True)], 0.0)
    assert (part.run.num_pins, engine.found(story(2)), engine.found(story(1))) == (0, 0, 300)
    assert engine.levels.holdings.host.budget.used_bytes == sum(run.num_bytes for run in engine.levels.holdings.index.runs())


@given(st.lists(_ACTIONS, max_size=40), st.integers(1, 8), st.integers(0, 8))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_books_always_agree(actions: list[tuple[str, object]], host_runs: int, disk_runs: int) -> None:
    engine = Engine(host_runs=host_runs, disk_runs=disk_runs, ttl_s=1000.0)
    for action, value in actions:
        _act(engine, action, value)
        for level, place in ((engine.levels.holdings.host, "host"), (engine.levels.holdings.disk, "disk")):
            runs = [run for run in engine.levels.holdings.index.runs() if getattr(run, place) is not Place.ABSENT]
            assert sorted(run.run_id for run in runs) == sorted(run.run_id for run in level.runs())
            assert level.budget.used_bytes == sum(level.bytes_of(run) for run in runs) <= level.budget.capacity_bytes
            assert level.num_tokens == sum(len(run.tokens) for run in runs)
        for run in engine.levels.holdings.index.runs():
            assert run.is_usable
            assert run.num_pins == 0
            assert run.start == 0 or engine.levels.holdings.index.with_digest(run.parent), "a run that nobody can find"


def _act(engine: Engine, action: str, value: object) -> None:
    levels = engine.levels
    if action == "wait":
        engine.now += value  # type: ignore[operator]
        levels.holdings.expire(engine.now)
    elif action == "break":
        levels.writes.switch_off()
    elif action == "clear":
        levels.holdings.clear(with_disk=bool(value))
    else:
        tokens = story(*value)  # type: ignore[misc]
        if action == "save":
            engine.save(tokens)
        parts = levels.find(tokens, "", 0, len(tokens))
        assert all(list(part.run.tokens[: part.num_tokens]) == tokens[part.begin : part.end] for part in parts)
        if action == "use":
            levels.holdings.used(parts, engine.now)
        if action == "fetch":
            for part in parts:
                levels.fetch(part, engine.now)
    engine.obey()


def test_while_requests_run_writes_start_at_a_distance() -> None:
    engine = Engine(disk_runs=10)
    levels = engine.levels
    tokens = story(1, 3 * RUN_TOKENS)
    for piece in levels.unsaved(tokens, ""):
        levels.save(piece, 0, tokens, 0.0)

    def num_ordered(now: float, *, is_busy: bool) -> int:
        levels.writes.order(now, is_busy=is_busy)
        return sum(isinstance(op, WriteRun) for op in engine.ops)

    apart_s = levels.bandwidths.apart_s(Way.WRITE, RUN_BYTES, 0.0)
    assert [num_ordered(now, is_busy=True) for now in (0.0, 0.9 * apart_s, 1.1 * apart_s)] == [1, 1, 2]
    assert num_ordered(1.2 * apart_s, is_busy=False) == 3, "nobody runs: nobody is disturbed"
