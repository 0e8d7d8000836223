"""The same outcome as a table, as JSON and as a page."""

import io
import json
import re
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console
from tests.unit.bench.ablate.samples import FACTORS, ablation

from ultrafast.bench.ablate.claims import claims
from ultrafast.bench.ablate.plot import draw
from ultrafast.bench.ablate.report import Report, saved_texts
from ultrafast.bench.ablate.savings import Saved, tables
from ultrafast.bench.records import Outcome


def printed(report):
    out = io.StringIO()
    report.print(Console(file=out, width=200))
    return out.getvalue()


def test_console():
    text = printed(Report(ablation()))
    assert text.count("naive  ") == 2
    assert len(re.findall(r"^all together +\d\d\.\d % +\d\d\.\d to \d\d\.\d", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^  against prefix reuse +\d\d\.\d %", text, re.MULTILINE)) == 2
    assert "published: 97.5 % less end to end on repeated multi-turn requests; measured: " in text
    assert "with 4 clients instead of 100" in text


def test_json_is_json_with_null_for_what_there_is_not():
    def fail(run):
        if run.pipeline == "together":
            run.requests[0].outcome = Outcome.FAILED

    report = Report(ablation(change=fail))
    document = json.loads(json.dumps(report.as_json(), allow_nan=False))
    rows = {row["pipeline"]: row for row in document["tables"][0]["rows"]}
    assert list(rows) == list(dict.fromkeys(rows)) != []
    assert rows["together"]["mean_e2e_s"] is None
    assert rows["together"]["saved"]["e2e"]["share"] is None
    assert document["pipelines"][0]["settings"]["engine.max_num_running"] == 1
    assert not report.is_complete
    assert Report(ablation()).is_complete


def test_the_page_needs_nothing_else_and_escapes(tmp_path):
    file = tmp_path / "page.html"
    Report(ablation()).write_html(file)
    page = file.read_text(encoding="utf-8")
    assert "m&lt;1&gt;: what each optimisation saves" in page
    assert "m<1>" not in page
    assert not re.search(r"<(script|link|img)|https?://|url\(", page)
    assert page.count("<svg") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("number", [0, 1])
def test_the_plot_holds_every_pipeline_inside_its_frame(number):
    made = ablation()
    table = tables(made)[number]
    svg = ET.fromstring(draw(table, claims(made)[number]))
    texts = [element.text for element in svg.iter() if element.tag.endswith("text")]
    assert [text for text in texts if text in {row.title for row in table.rows}] == [row.title for row in table.rows[1:]]
    assert len([rect for rect in svg.iter() if rect.tag.endswith("rect")]) == len(FACTORS) - 1
    width, height = (float(size) for size in svg.get("viewBox").split()[2:])
    for circle in (element for element in svg.iter() if element.tag.endswith("circle")):
        assert 250 <= float(circle.get("cx")) <= width - 128
        assert 0 < float(circle.get("cy")) < height


def test_marks_stand_where_the_axis_says():
    made = ablation()
    table = tables(made)[0]
    svg = ET.fromstring(draw(table, None))
    ticks = {text.text: float(text.get("x")) for text in svg.iter() if text.get("class") == "tick"}
    pixels_per_share = (ticks["50 %"] - ticks["0 %"]) / 0.5
    bars = [(float(r.get("x")), float(r.get("width"))) for r in svg.iter() if r.tag.endswith("rect")]
    dots = [float(c.get("cx")) for c in svg.iter() if c.tag.endswith("circle")]
    for row, (begin, width), dot in zip(table.rows[1:], bars, dots, strict=True):
        share = row.saved["e2e"].share
        assert begin == pytest.approx(ticks["0 %"] + min(0, share) * pixels_per_share, abs=0.2)
        assert width == pytest.approx(max(1, abs(share) * pixels_per_share), abs=0.2)
        assert dot == pytest.approx(ticks["0 %"] + row.saved["ttft_p95"].share * pixels_per_share, abs=0.2)


def test_shares_as_text():
    assert saved_texts(None) == ("-", "-")
    assert saved_texts(Saved(None)) == ("-", "-")
    assert saved_texts(Saved(0.5)) == ("50.0 %", "-")
    assert saved_texts(Saved(-0.25, -0.3, 0.1)) == ("-25.0 %", "-30.0 to 10.0")
