"""Grafana's dashboard JSON in small pieces: queries, panels, thresholds, rows and the variables on top.

The data source is a variable, so that the dashboard can be imported anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
GRID_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how its series are called. `is_instant`: only the latest value."""

    expr: str
    legend: str
    is_instant: bool = False


def thresholds(green_to_red: Sequence[tuple[str, float | None]]) -> Json:
    """Colours from a value upwards; the first has no value: it is the colour below all others."""
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in green_to_red]}


def rising(yellow: float, red: float) -> Json:
    """Low is good."""
    return thresholds((("green", None), ("yellow", yellow), ("red", red)))


def falling(red_below: float, yellow_below: float) -> Json:
    """High is good."""
    return thresholds((("red", None), ("yellow", red_below), ("green", yellow_below)))


def limit(value: float) -> Json:
    """Green up to `value`, red above."""
    return thresholds((("green", None), ("red", value)))


PLAIN = thresholds((("green", None),))


def graph(
    title: str, queries: Sequence[Query], unit: str, text: str, *, steps: Json | None = None, is_stacked: bool = False
) -> Json:
    """Lines over time. With `steps`, a dashed line marks each threshold."""
    custom: Json = {"lineWidth": 1, "fillOpacity": 40 if is_stacked else 0, "showPoints": "never", "spanNulls": False}
    if is_stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    if steps:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    defaults = {"unit": unit, "min": 0, "color": {"mode": "palette-classic"}, "custom": custom, "thresholds": steps or PLAIN}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, queries, text, defaults, options)


def stat(title: str, queries: Sequence[Query], unit: str, text: str, steps: Json, *, top: float | None = None) -> Json:
    """Large figures, coloured by thresholds. `top`: the largest value that makes sense."""
    defaults: Json = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": steps, "noValue": "no traffic"}
    if top is not None:
        defaults |= {"min": 0, "max": top}
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "value_and_name",
        "orientation": "auto",
    }
    return _panel("stat", title, queries, text, defaults, options)


def bars(title: str, queries: Sequence[Query], unit: str, text: str, steps: Json) -> Json:
    """One horizontal bar per series, coloured by thresholds."""
    defaults: Json = {"unit": unit, "min": 0, "color": {"mode": "thresholds"}, "thresholds": steps, "noValue": "no traffic"}
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
    }
    return _panel("bargauge", title, queries, text, defaults, options)


def _panel(kind: str, title: str, queries: Sequence[Query], text: str, defaults: Json, options: Json) -> Json:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "range": not query.is_instant,
            "instant": query.is_instant,
        }
        for index, query in enumerate(queries)
    ]
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, side by side. A collapsed row loads its panels when somebody opens it."""

    title: str
    panels: tuple[Json, ...]
    width: int
    height: int
    is_collapsed: bool = False


def lay_out(rows: Iterable[Row]) -> list[Json]:
    """Give every panel its id and its place: left to right, `width` of 24 columns each, then the next line."""
    placed: list[Json] = []
    y = 0
    next_id = 1
    for row in rows:
        heading: Json = {"type": "row", "title": row.title, "collapsed": row.is_collapsed, "id": next_id, "panels": []}
        heading["gridPos"] = {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1}
        y += 1
        per_line = GRID_WIDTH // row.width
        panels = [
            panel
            | {
                "id": next_id + 1 + index,
                "gridPos": {
                    "x": index % per_line * row.width,
                    "y": y + index // per_line * row.height,
                    "w": row.width,
                    "h": row.height,
                },
            }
            for index, panel in enumerate(row.panels)
        ]
        next_id += 1 + len(panels)
        if row.is_collapsed:
            heading["panels"] = panels
            placed.append(heading)
            continue
        placed += [heading, *panels]
        y += -(-len(panels) // per_line) * row.height
    return placed


def variable(name: str, label: str, query: str, *, is_multi: bool) -> Json:
    """A choice on top of the dashboard, filled from the values of a label."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": is_multi,
        "includeAll": is_multi,
        "allValue": ".*" if is_multi else None,
        "current": {"text": "All", "value": "$__all"} if is_multi else {},
        "options": [],
        "hide": 0,
    }


def datasource_variable() -> Json:
    """The choice of the Prometheus to read."""
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
        "hide": 0,
    }
