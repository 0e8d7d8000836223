"""The plot of an ablation: a row for each pipeline, two marks in it, what it saves of the naive one's time. Pure; SVG out.

warm tokenizer   |=====|-|              mean E2E: a bar with its interval
                 |   --o--              P95 TTFT: a dot with its interval
                 0 %            100 %
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from ultrafast.bench.ablate.claims import Claim
from ultrafast.bench.ablate.savings import Row, Saved, Table
from ultrafast.bench.svg import Scale

STYLE = """
svg .saved-e2e { fill: var(--accent); } svg .saved-ttft { fill: var(--ultrafast); }
svg .reach { fill: none; stroke: var(--ink); stroke-width: 1.5; }
svg .zero { fill: none; stroke: var(--ink); stroke-width: 1.5; }
svg text.name { fill: var(--ink); font-size: 13px; } svg text.figure { font-size: 12px; fill: var(--ink); }
.key-e2e, .key-ttft { display: inline-block; width: 12px; height: 12px; margin-right: 6px; vertical-align: -1px; }
.key-e2e { background: var(--accent); } .key-ttft { background: var(--ultrafast); border-radius: 50%; }
.keys span { margin-right: 20px; }
.savings th, .savings td { padding-left: 5px; padding-right: 5px; font-size: 13px; }
"""
"""For the page's style sheet, behind `report.css`."""

LEGEND = (
    '<p class="keys soft"><span><i class="key-e2e"></i>mean end-to-end time</span>'
    '<span><i class="key-ttft"></i>P95 time to first token</span><span>whiskers: 95 % interval, where there is one</span></p>'
)
WIDTH = 1080
_LEFT, _RIGHT, _TOP, _BOTTOM = 250, 128, 30, 46
_ROW, _BAR = 40, 13
_LOWEST = -1.0
"""What costs more than the naive pipeline's whole time again is cut off there; the figure beside it is not."""


def draw(table: Table, claim: Claim | None) -> str:
    """The `<svg>` of one workload. `claim` becomes a dashed line."""
    rows = table.rows[1:]
    height = _TOP + _BOTTOM + _ROW * max(1, len(rows))
    x = _scale(rows, claim)
    title = f"Time saved against the naive pipeline: {table.title}"
    parts = [f'<svg class="wide" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    bottom = height - _BOTTOM
    for value in x.ticks():
        px = x.at(value)
        parts.append(f'<path class="grid" d="M{px:.1f} {_TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{px:.1f}" y="{bottom + 17}" text-anchor="middle">{value:g} %</text>')
    parts.append(f'<path class="zero" d="M{x.at(0):.1f} {_TOP}V{bottom}"/>')
    for number, row in enumerate(rows):
        parts += _row(row, x, _TOP + number * _ROW)
    if claim is not None:
        parts += _claim(claim, x, bottom)
    label = "time saved against the naive pipeline; below 0 it costs time"
    parts.append(
        f'<text class="label" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{height - 8}" text-anchor="middle">{escape(label)}</text>'
    )
    return "".join([*parts, "</svg>"])


def _scale(rows: list[Row], claim: Claim | None) -> Scale:
    """In percent; zero and everything that is drawn lie inside."""
    values = [0.0, *([claim.published] if claim else [])]
    for row in rows:
        for saved in (row.saved["e2e"], row.saved["ttft_p95"]):
            values += [value for value in (saved.share, saved.low, saved.high) if value is not None]
    return Scale.over([100 * max(_LOWEST, value) for value in values if math.isfinite(value)], _LEFT, WIDTH - _RIGHT)


def _row(row: Row, x: Scale, top: float) -> Iterator[str]:
    yield f'<text class="name" x="{_LEFT - 12}" y="{top + _ROW / 2 + 4:.1f}" text-anchor="end">{escape(row.title)}</text>'
    upper, lower = top + _ROW * 0.32, top + _ROW * 0.72
    yield from _bar(row.saved["e2e"], x, upper)
    yield from _dot(row.saved["ttft_p95"], x, lower)
    yield _figure(row.saved["e2e"], upper)
    yield _figure(row.saved["ttft_p95"], lower)


def _bar(saved: Saved, x: Scale, y: float) -> Iterator[str]:
    if saved.share is None:
        return
    begin, end = sorted((x.at(0), x.at(100 * saved.share)))
    yield f'<rect class="saved-e2e" x="{begin:.1f}" y="{y - _BAR / 2:.1f}" width="{max(1.0, end - begin):.1f}" height="{_BAR}"/>'
    yield from _reach(saved, x, y)


def _dot(saved: Saved, x: Scale, y: float) -> Iterator[str]:
    if saved.share is None:
        return
    yield from _reach(saved, x, y)
    yield f'<circle class="saved-ttft" cx="{x.at(100 * saved.share):.1f}" cy="{y:.1f}" r="5"/>'


def _reach(saved: Saved, x: Scale, y: float) -> Iterator[str]:
    if saved.low is not None and saved.high is not None:
        low, high = x.at(100 * saved.low), x.at(100 * saved.high)
        caps = "".join(f"M{px:.1f} {y - 4:.1f}v8" for px in (low, high))
        yield f'<path class="reach" d="M{low:.1f} {y:.1f}H{high:.1f}{caps}"/>'


def _figure(saved: Saved, y: float) -> str:
    text = "a request failed" if saved.share is None else f"{100 * saved.share:.1f} %"
    return f'<text class="figure" x="{WIDTH - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _claim(claim: Claim, x: Scale, bottom: float) -> Iterator[str]:
    px = x.at(100 * claim.published)
    yield f'<path class="mark" d="M{px:.1f} {_TOP}V{bottom}"/>'
    text = f"published: {100 * claim.published:g} % ({claim.tested})"
    yield f'<text class="mark-text" x="{px:.1f}" y="{_TOP - 8}" text-anchor="end">{escape(text)}</text>'
