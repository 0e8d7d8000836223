"""The whole comparison: refusal, verdict, report."""

import json

import pytest
from tests.unit.bench.synthetic import request, run_of

from ultrafast.bench.compare.conditions import ALL_KEYS, ConditionsDifferError, Mismatch, check_conditions
from ultrafast.bench.compare.interleave import order_of, run_pairs
from ultrafast.bench.compare.judge import Rules
from ultrafast.bench.compare.metrics import DEFAULT_FIGURES, Figure
from ultrafast.bench.compare.report import as_json, as_text, first_line
from ultrafast.bench.compare.verdicts import EXIT_CODES, NoSuccessError, compare
from ultrafast.bench.records import Flag, FlagLevel, Outcome
from ultrafast.bench.session import BenchSpec
from ultrafast.bench.workload import WorkloadSpec


def side(ttft_s=0.1, num_runs=5, num_requests=100, prompt=100, num_tokens=5, tier=None, **run):
    """Runs that differ by a thousandth from each other."""
    factors = [1 + 0.001 * number for number in range(num_runs)]
    gaps = [0.01, 0.02] * (num_tokens // 2)
    return [
        run_of(
            [request(i, ttft_s * factor, [gap * factor for gap in gaps], prompt=prompt, tier=tier) for i in range(num_requests)],
            **run,
        )
        for factor in factors
    ]


def verdict(a, b, **options):
    return compare(a, b, options.pop("figures", DEFAULT_FIGURES), options.pop("rules", Rules()), names=("old", "new"), **options)


def test_exit_codes():
    assert [EXIT_CODES[each] for each in ("same_or_better", "worse", "inconclusive", "error")] == [0, 1, 2, 3]


def test_same_worse_better():
    assert verdict(side(), side()).exit_code == 0
    report = verdict(side(), side(0.12))
    assert report.exit_code == 1
    assert first_line(report).startswith("WORSE: more than 5 % worse: ttft p50 +20.0 %, ttft p90 +20.0 %")
    better = verdict(side(), side(0.08))
    assert first_line(better).startswith("SAME OR BETTER: no figure is more than 5 % worse; better: ttft p50 -20.0 %")
    assert verdict(side(), side(0.12), rules=Rules(margin=0.25)).exit_code == 0


def test_few_runs_decide_nothing():
    figures = [Figure("ttft", 0.5)]
    report = verdict(side(num_runs=4), side(0.2, num_runs=4), figures=figures)
    assert report.exit_code == 2
    assert "4 of 5 runs per side" in report.reason
    assert verdict(side(num_runs=4), side(0.2, num_runs=4), rules=Rules(min_runs=4), figures=figures).exit_code == 1


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("model", {"model": "other"}),
        ("arrival", {"arrival": "closed"}),
        ("rate_per_s", {"rate_per_s": 3.0}),
        ("concurrency", {"concurrency": 4}),
        ("input_len", {"input_len": "512"}),
        ("tier_mix", {"tier_mix": {"flex": 1.0}}),
        ("num_turns", {"num_turns": 3}),
        ("is_cache_cold", {"is_cache_cold": False}),
        ("prompt_tokens", {"prompt": 110}),
        ("output_tokens", {"num_tokens": 9}),
    ],
)
def test_other_conditions_are_refused_by_name_or_allowed_by_name(key, change):
    assert key in ALL_KEYS
    other = side(**change)
    with pytest.raises(ConditionsDifferError) as caught:
        verdict(side(), other)
    assert f"{key} (A " in caught.value.message
    assert f"--allow-different {key}" in caught.value.hint
    report = verdict(side(), other, allowed=[key], figures=[Figure("ttft", 0.5)])
    assert report.exit_code == 0
    assert [mismatch.key for mismatch in report.allowed] == [key]
    assert f"differs, accepted: {key}" in as_text(report)


@pytest.mark.parametrize(("prompt", "other", "is_alike"), [(47, 48, True), (47, 49, False), (470, 479, True), (470, 480, False)])
def test_prompts_are_as_long_when_they_differ_by_a_token_or_two_percent(prompt, other, is_alike):
    try:
        verdict(side(prompt=prompt), side(prompt=other))
    except ConditionsDifferError:
        assert not is_alike
    else:
        assert is_alike


def test_another_machine_is_refused_and_another_server_is_told():
    other = side()
    for run in other:
        run.record.environment = {"client.cpu": "another cpu", "server.version": "2"}
    with pytest.raises(ConditionsDifferError, match="cpu"):
        verdict(side(), other)
    report = verdict(side(), other, allowed=["cpu"])
    assert "server: server.version (A -, B 2)" in as_text(report)


def test_a_side_must_be_of_one_kind():
    with pytest.raises(ConditionsDifferError, match="side A differ among themselves"):
        check_conditions([*side(num_runs=1), *side(num_runs=1, concurrency=3)], side())


def test_flags():
    report = verdict(side(), side(0.2, flags=[Flag("loop_lag", FlagLevel.INVALID, "the client was slow")]))
    assert (report.exit_code, report.reason) == (2, "the client was slow")
    unreliable = [Flag("coalesced", FlagLevel.UNRELIABLE, "chunks come together", ("gap", "jitter"))]
    report = verdict(side(), side(flags=unreliable))
    assert report.exit_code == 2
    assert "gap p50: chunks come together" in report.reason
    assert verdict(side(), side(flags=unreliable), figures=[Figure("ttft", 0.5)]).exit_code == 0


def test_failures_make_worse_and_total_failure_is_an_error():
    failing = [run_of([request(i, None if i < 5 else 0.1, outcome=_failed(i < 5)) for i in range(100)]) for _ in range(5)]
    fine = [run_of([request(i, 0.1) for i in range(100)]) for _ in range(5)]
    report = verdict(fine, failing, figures=[Figure("ttft", 0.5)])
    assert (report.exit_code, report.reason) == (1, "25 of 500 requests fail in B, 0 of 500 in A")
    dead = [run_of([request(i, None, outcome=Outcome.FAILED) for i in range(100)])]
    with pytest.raises(NoSuccessError, match="new"):
        verdict(fine, dead, allowed=ALL_KEYS)


def _failed(is_failed):
    return Outcome.FAILED if is_failed else Outcome.OK


def test_one_tier_only():
    def mixed(flex_s):
        return [
            run_of([request(i, flex_s if i % 2 else 0.1, tier="flex" if i % 2 else "fast") for i in range(200)]) for _ in range(5)
        ]

    figures = [Figure("ttft", 0.5), Figure("ttft", 0.9)]
    assert verdict(mixed(1.0), mixed(2.0), figures=figures, tier="priority").exit_code == 0
    assert verdict(mixed(1.0), mixed(2.0), figures=figures, tier="flex").exit_code == 1


def test_report_reads_back():
    report = verdict(side(), side(0.12))
    document = json.loads(as_json(report))
    assert (document["type"], document["verdict"], document["exit_code"]) == ("compare", "worse", 1)
    first = document["figures"][0]
    assert first["ratio"] == pytest.approx(1.2)
    assert first["figure"] == {"metric": "ttft", "quantile": 0.5}
    table = as_text(report)
    assert "A: old (5 runs, 500 requests)" in table
    assert "+20.0 %" in table


async def test_pairs_run_abba_with_equal_seeds_and_different_texts():
    assert [order_of(pair) for pair in range(3)] == [("a", "b"), ("b", "a"), ("a", "b")]
    spec = BenchSpec(name="x", url="http://h", workload=WorkloadSpec(num_requests=1, input_len="1", output_len="1", seed=7))
    seen = []

    async def measure(side, spec):
        seen.append((side, spec.workload.seed, spec.workload.text_seed))
        return run_of([])

    a, b = await run_pairs(spec, spec, 3, measure)
    assert (len(a), len(b)) == (3, 3)
    assert [(side, seed) for side, seed, _ in seen] == [("a", 7), ("b", 7), ("b", 8), ("a", 8), ("a", 9), ("b", 9)]
    assert len({text_seed for _, _, text_seed in seen}) == 6


def test_settings_are_what_it_is_about_and_addresses_and_starts_are_not_told():
    setting = Mismatch("engine.speculation", "auto", "off")
    a, b = side(url="http://127.0.0.1:1"), side(url="http://127.0.0.1:2")
    for run, seconds in ((a[0], "1.5"), (b[0], "1.7")):
        run.record.environment |= {"server.load_s": seconds, "server.kv_type_k": f"f{seconds}"}
    report = verdict(a, b, settings=[setting])
    text = as_text(report)
    assert "setting: engine.speculation (A auto, B off)" in text
    assert json.loads(as_json(report))["settings"] == [{"key": "engine.speculation", "a": "auto", "b": "off"}]
    assert [mismatch.key for mismatch in report.servers] == ["server.kv_type_k"]
    assert [mismatch.key for mismatch in verdict(a, b).servers] == ["url", "server.kv_type_k"]
