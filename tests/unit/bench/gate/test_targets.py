"""Targets as people write them."""

import pytest

from ultrafast.bench.gate.slo_file import read_slo_file
from ultrafast.bench.gate.targets import Metric, parse_target
from ultrafast.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "metric", "quantile", "limit", "tier"),
    [
        ("ttft:p99<=300ms", Metric.TTFT, 0.99, 0.3, None),
        ("ttft:p99<=300", Metric.TTFT, 0.99, 0.3, None),
        ("e2e:p95<=2s", Metric.E2E, 0.95, 2.0, None),
        ("e2el : p99.9 < 1.5 s", Metric.E2E, 0.999, 1.5, None),
        ("itl:p50<=800us@ultrafast", Metric.ITL, 0.5, 0.0008, "ultrafast"),
        ("TTFT:P99<=300MS@batch", Metric.TTFT, 0.99, 0.3, "flex"),
        ("ttft:p99<=3ms@Scale", Metric.TTFT, 0.99, 0.003, "scale"),
        ("jitter<=20ms", Metric.JITTER, None, 0.02, None),
        ("jitter:p95<=20ms", Metric.JITTER, 0.95, 0.02, None),
        ("errors<=1%", Metric.ERRORS, None, 0.01, None),
    ],
)
def test_forms(text, metric, quantile, limit, tier):
    target = parse_target(text)
    assert (target.metric, target.quantile, target.tier) == (metric, quantile, tier)
    assert target.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttft",
        "ttft<=300ms",
        "ttft:p100<=3ms",
        "ttft:p99<=0",
        "ttft:p99>=3ms",
        "speed:p99<=3ms",
        "ttft:p99<=3%",
        "errors:p9<=1%",
        "errors<=100%",
        "errors<=3ms",
        "ttft:p99<=-3ms",
        "ttft:p99<=nan",
    ],
)
def test_refused_with_a_hint(text):
    with pytest.raises(ConfigError) as caught:
        parse_target(text)
    assert caught.value.hint


def test_text_reads_back():
    for text in ("ttft p99 <= 300 ms", "jitter <= 20 ms", "errors <= 1 %", "e2e p99.9 (flex) <= 2000 ms"):
        name, _, limit = text.partition(" <= ")
        metric, _, rest = name.partition(" ")
        percentile = rest.split(" ")[0] if rest else ""
        tier = f"@{rest.split('(')[1][:-1]}" if "(" in rest else ""
        assert str(parse_target(f"{metric}{':' if percentile else ''}{percentile}<={limit.replace(' ', '')}{tier}")) == text


def test_slo_file_in_the_words_of_the_server(tmp_path):
    file = tmp_path / "slo.toml"
    file.write_text(
        "[server]\nport = 1\n[tiers]\ncurrency = 'EUR'\n[tiers.ultrafast]\nttft_ms = 200\ntpot_ms = 25\njitter_ms = 20\n"
        "price_input = 3\n[tiers.flex]\nttft_ms = 30000\npercentile = 95\ne2e_ms = 0\nmin_share = 0.05\n",
        encoding="utf-8",
    )
    found = [str(target) for target in read_slo_file(file)]
    assert found == [
        "ttft p99 (ultrafast) <= 200 ms",
        "tpot p99 (ultrafast) <= 25 ms",
        "jitter (ultrafast) <= 20 ms",
        "ttft p95 (flex) <= 30 s",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[tiers",
        "[tiers.fastest]\nttft_ms=1",
        "[tiers.flex]\nttft=1",
        "[tiers.flex]\nttft_ms='1'",
        "tiers = 3",
        "[tiers.flex]\npercentile = 0\nttft_ms = 3",
        "[tiers.flex]\nttft_ms = true",
        "[tiers.flex]\nttft_ms = -1",
    ],
)
def test_bad_slo_files(tmp_path, text):
    file = tmp_path / "slo.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_slo_file(file)
    assert caught.value.hint
    with pytest.raises(ConfigError):
        read_slo_file(tmp_path / "none.toml")
