"""Reports: self-contained, escaped, and every number that they show is one of the summary."""

import io
import math
import re
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console
from tests.unit.bench.stream_records import record_of, run_of, truth_reads

from ultrafast.bench.metrics import METRICS, summarise
from ultrafast.bench.records import Flag, FlagLevel
from ultrafast.bench.report_console import print_run, print_sweep
from ultrafast.bench.report_html import render_html
from ultrafast.bench.svg import Scale, tick_text
from ultrafast.bench.wording import duration, milliseconds


def measured(**scenario):
    requests = [
        record_of(truth_reads(20), scheduled_ms=-number, headers={"server-timing": "queue;dur=1, prefill;dur=9"})
        for number in range(6)
    ]
    for number, request in enumerate(requests):
        request.tier_requested = ("ultrafast", "<b>odd</b>")[number % 2]
    requests.append(record_of([], status=503))
    run = run_of(requests, goodput={"ttft": 0.3}, metadata={"note": "<script>alert(1)</script>"}, **scenario)
    run.record.flags = [Flag("tokens", FlagLevel.UNRELIABLE, "not <sure>", ("itl",))]
    return run, summarise(run)


def test_html_needs_nothing_else_and_escapes_what_it_is_given():
    html = render_html([measured(rate_per_s=2.0)])
    assert not re.search(r"(src|href|url\()\s*=?\s*[\"']?(http|//)", html)
    assert "<script" not in html
    assert "<b>odd" not in html
    assert "not &lt;sure&gt;" in html


def test_every_plot_is_well_formed_and_has_labels_with_units():
    html = render_html([measured(rate_per_s=rate) for rate in (1.0, 2.0)])
    plots = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(plots) == 2 + 2 * 3
    for plot in plots:
        root = ET.fromstring(plot)
        labels = [text.text or "" for text in root.iter("text") if text.get("class") == "label"]
        assert len(labels) == 2
        assert any("(" in label for label in labels), labels


def test_a_curve_of_requests_ends_below_100_when_some_failed():
    html = render_html([measured()])
    assert "valid with limits" in html
    assert "TTFT" in html


def test_console_tables_hold_the_figures():
    console = Console(width=140, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    run, summary = measured(rate_per_s=2.0)
    print_run(console, run, summary, METRICS)
    print_sweep(console, [(run, summary)])
    console.file.close()
    text = console.export_text()
    assert "7 planned = 6 ok + 1 failed + 0 cancelled" in text
    assert "UNRELIABLE: not <sure>" in text
    assert "ITL (per token) ?" in text
    assert "inf" in text


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("values", [[5.0], [1.0, 2.0], [0.3, 4000.0], [], [7.0, 7.0], [1e-6, 1e6], [math.inf]])
def test_scales_hold_their_values_and_have_ticks(values: list[float], is_log: bool):
    scale = Scale.over(values, 0, 100, is_log=is_log)
    assert 2 <= len(scale.ticks()) <= 12
    for value in values:
        if math.isfinite(value):
            assert -0.001 <= scale.at(value) <= 100.001
    pixels = [scale.at(tick) for tick in scale.ticks()]
    assert pixels == sorted(pixels)


def test_number_formats():
    assert [milliseconds(value) for value in (None, math.inf, 0.0005, 0.0123, 0.2044, 12.345)] == [
        "-",
        "inf",
        "0.50",
        "12.3",
        "204",
        "12,345",
    ]
    assert [duration(value) for value in (0.5, 65, 200, 8000)] == ["0.5 s", "65 s", "3 min 20 s", "2 h 13 min"]
    assert [tick_text(value) for value in (0.0, 0.25, 12_000, 0.3 + 1e-12)] == ["0", "0.25", "12,000", "0.3"]


def test_an_slo_without_a_figure_and_what_the_server_counted_are_shown():
    request = record_of(truth_reads(1))
    run = run_of([request], goodput={"ttft": 9.0, "tpot": 9.0})
    run.record.server_counted = {"preemptions": 2.0, "cache_hit_share": 0.25, "mean_queue_s": 0.5}
    summary = summarise(run)
    console = Console(width=160, record=True, file=io.StringIO())
    print_run(console, run, summary, ["ttft"])
    for text in (console.export_text(), render_html([(run, summary)])):
        assert "not defined: TPOT for 1" in text
        assert "preemptions 2, prefix cache hits 25.0 %, mean queue 500 ms" in text
