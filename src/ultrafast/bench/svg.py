"""Just enough SVG for line plots: scales with round ticks, axes with units, curves. Pure: numbers in, text out.

Colours and fonts are classes, so that the page's style sheet decides on light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 640, 320
WIDE = 1240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 18, 22, 48
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels, linear or logarithmic, with ticks at round values."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, *, is_log: bool = False, from_zero: bool = False) -> Scale:
        """Covers all finite values, with a little air; something sensible when there are none."""
        finite = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)]
        if not finite:
            return cls(0.1 if is_log else 0.0, 1.0, start, end, is_log)
        low, high = min(finite), max(finite)
        if is_log:
            return cls(low / 1.15, max(high * 1.15, low * 1.5), start, end, is_log=True)
        low = 0.0 if from_zero else low
        air = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        return cls(low if from_zero else low - air, high + air, start, end)

    def at(self, value: float) -> float:
        """The pixel of a value, kept inside the scale."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 7) -> list[float]:
        """At most about `most` round values inside the scale."""
        return self._log_ticks(most) if self.is_log else _linear_ticks(self.low, self.high, most)

    def _log_ticks(self, most: int) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [value for decade in decades for digit in digits if self.low <= (value := digit * 10.0**decade) <= self.high]
            if len(found) <= most:
                return found if len(found) > 1 else _linear_ticks(self.low, self.high, 4)
        return found[:: math.ceil(len(found) / most)]


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(1, most - 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(size * magnitude for size in (1, 2, 2.5, 5, 10) if size * magnitude >= raw)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(slots=True)
class Plot:
    """One plot: draw into it, then `render`. Text stands outside the plotting area, so nothing overlaps the data."""

    title: str
    x_label: str
    y_label: str
    x: Scale
    y: Scale
    height: int = HEIGHT
    width: int = WIDTH
    x_ticks: Sequence[float] | None = None
    """None: round values."""
    shows_y_ticks: bool = True
    _marks: list[str] = field(default_factory=list)

    def line(self, points: Sequence[Point], style: str, title: str = "", *, has_dots: bool = False) -> None:
        """A polyline of class `style`; `title` shows when the pointer rests on it."""
        if not points:
            return
        pixels = [(self.x.at(x), self.y.at(y)) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
        self._marks.append(f'<path class="line {style}" d="{path}">{_title(title)}</path>')
        if has_dots:
            dots = "".join(f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in pixels)
            self._marks.append(dots)

    def band(self, x: float, low: float, high: float, style: str) -> None:
        """A vertical whisker with caps."""
        px, top, bottom = self.x.at(x), self.y.at(high), self.y.at(low)
        path = f"M{px:.1f} {top:.1f}V{bottom:.1f}M{px - 4:.1f} {top:.1f}h8M{px - 4:.1f} {bottom:.1f}h8"
        self._marks.append(f'<path class="whisker {style}" d="{path}"/>')

    def segment(self, x1: float, x2: float, y: float, style: str, title: str = "") -> None:
        """A horizontal piece."""
        self._marks.append(
            f'<path class="{style}" d="M{self.x.at(x1):.1f} {self.y.at(y):.1f}H{self.x.at(x2):.1f}">{_title(title)}</path>'
        )

    def strokes(self, xs: Iterable[float], y: float, half_height: float, style: str) -> None:
        """Short vertical strokes in one row; those that fall on the same half pixel are drawn once."""
        py = self.y.at(y)
        pixels = sorted({round(self.x.at(x) * 2) / 2 for x in xs})
        if pixels:
            path = "".join(f"M{x:g} {py - half_height:.1f}v{2 * half_height:.1f}" for x in pixels)
            self._marks.append(f'<path class="stroke {style}" d="{path}"/>')

    def cross(self, x: float, y: float, size: float, style: str) -> None:
        """A small cross, `size` pixels from its middle to each side."""
        px, py, step = self.x.at(x), self.y.at(y), 2 * size
        path = f"M{px - size:.1f} {py - size:.1f}l{step:.1f} {step:.1f}m{-step:.1f} 0l{step:.1f} {-step:.1f}"
        self._marks.append(f'<path class="cross {style}" d="{path}"/>')

    def x_mark(self, value: float, text: str) -> None:
        """A dashed vertical line, labelled above the plotting area."""
        if not self.x.low <= value <= self.x.high:
            return
        px = self.x.at(value)
        anchor = "end" if px > self.width * 0.8 else "start" if px < self.width * 0.2 else "middle"
        self._marks.append(f'<path class="mark" d="M{px:.1f} {_TOP}V{self.height - _BOTTOM}"/>')
        self._marks.append(f'<text class="mark-text" x="{px:.1f}" y="{_TOP - 7}" text-anchor="{anchor}">{escape(text)}</text>')

    def render(self) -> str:
        """The whole `<svg>` element."""
        bottom, right = self.height - _BOTTOM, self.width - _RIGHT
        size = "wide" if self.width > WIDTH else "normal"
        parts = [f'<svg class="{size}" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}">']
        for value in self.x_ticks if self.x_ticks is not None else self.x.ticks():
            px = self.x.at(value)
            parts.append(f'<path class="grid" d="M{px:.1f} {_TOP}V{bottom}"/>')
            parts.append(f'<text class="tick" x="{px:.1f}" y="{bottom + 17}" text-anchor="middle">{tick_text(value)}</text>')
        for value in self.y.ticks(6) if self.shows_y_ticks else []:
            py = self.y.at(value)
            parts.append(f'<path class="grid" d="M{_LEFT} {py:.1f}H{right}"/>')
            parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{tick_text(value)}</text>')
        parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
        parts += self._marks
        across, down = (_LEFT + right) / 2, (_TOP + bottom) / 2
        parts.append(_label(f'x="{across}" y="{self.height - 8}"', self.x_label))
        parts.append(_label(f'transform="translate(16 {down}) rotate(-90)"', self.y_label))
        return "".join([*parts, "</svg>"])


def x_scale(values: Iterable[float], width: int = WIDTH, *, is_log: bool = False, from_zero: bool = False) -> Scale:
    """A scale over the width of a plot."""
    return Scale.over(values, _LEFT, width - _RIGHT, is_log=is_log, from_zero=from_zero)


def y_scale(values: Iterable[float], height: int = HEIGHT, *, is_log: bool = False, from_zero: bool = True) -> Scale:
    """A scale over the height of a plot; larger values stand higher."""
    return Scale.over(values, height - _BOTTOM, _TOP, is_log=is_log, from_zero=from_zero)


def rows_scale(num_rows: int, height: int) -> Scale:
    """Rows from the top: row 0 is the uppermost."""
    return Scale(-0.75, max(num_rows, 1) - 0.25, _TOP, height - _BOTTOM)


def height_of_rows(num_rows: int, row_pixels: float) -> int:
    """Height of a plot with that many rows."""
    return round(_TOP + _BOTTOM + max(num_rows, 1) * row_pixels)


def tick_text(value: float) -> str:
    """A tick in as few digits as it takes."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.1e}"


def _label(place: str, text: str) -> str:
    return f'<text class="label" {place} text-anchor="middle">{escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
