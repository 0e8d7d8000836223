"""The cost model: how long a step takes, learnt from the steps that ran.

    t = c0 + (c_out + a_out * kv) * num_outputs + (c_tok + a_tok * kv) * num_prefill_tokens         seconds; kv: cells in use

Least squares with forgetting; the two slopes are learnt apart (`attention`). Steps that only decode and steps that also prefill
are remembered apart, each class fading only as new steps of its kind come: an hour of pure decoding must not wash out what a
prefill token costs. Each observation is weighted by 1/t: relative errors count, and one stalled step does not tilt the fit.
"""

from __future__ import annotations

from ultrafast.sched.attention import Slope
from ultrafast.sched.fastest import Fastest

_FORGET = 0.95
_MIN_PREFILL_STEPS = 3
_MAX_GROWTH = 2
_RIDGE = 1e-6
_MATURE_PREFILL_STEPS = 20
"""Before, the fit itself still moves, and what it moves by would be taken for a slope."""
_ERROR_WEIGHT = 0.25
_MAX_ERROR = 0.4
"""The last few chunks correct what a prefill token is believed to cost, by so much at most."""
_MIN_SLOPE_TOKENS = 8
"""Smaller chunks have a price of their own (a matrix product of few rows), whatever is in the pool."""
_REFIT_DECODES = 8
"""So many pure decodes may pass before the fit is made again: they change it little, and it costs half a plan."""
_STEADY_DECODES = 16
_STEADY_SHARE = 4
"""After so many pure decodes of one size in a row, only every fourth is learnt from: the others say the same, and the code for it
is cold after each forward pass (0.1 ms of a step of 10)."""

_KEPT_OF_STEADY = _FORGET**_STEADY_SHARE
_STEADY_WEIGHT = (1 - _KEPT_OF_STEADY) / (1 - _FORGET)

Row = tuple[float, float, float]


class CostModel:
    """Predicts step times. Pure arithmetic on three coefficients; a prediction costs some multiplications.

    Attributes:
        num_kv_tokens: cells in use, for which it predicts; to be set before each step is planned.
        fastest: the best that was ever seen.
    """

    def __init__(self) -> None:
        self.num_kv_tokens = 0
        self.fastest = Fastest()
        self._output_slope = Slope()
        self._token_slope = Slope()
        self._output_slope_s = self._token_slope_s = 0.0
        self._token_error = 1.0
        self._moments = {True: _Moments(), False: _Moments()}
        self._num_prefill_steps = 0
        self._largest_prefill = 0.0
        self._fitted: Row | None = (0.0, 0.0, 0.0)  # None: to be made again
        self._num_unfitted_decodes = _REFIT_DECODES  # the first step of all counts at once
        self._latest_decodes = self._num_alike = 0

    @property
    def coefficients(self) -> Row:
        """What a step, an output and a prefill token cost with as much in the pool as there is now; zeros before it knows."""
        if self._fitted is None:
            self._fitted = _fit(self._moments[True], self._moments[False])
        base_s, output_s, token_s = self._fitted
        kv = self.num_kv_tokens
        return base_s, output_s + self._output_slope_s * kv, (token_s + self._token_slope_s * kv) * self._token_error

    @property
    def is_fitted(self) -> bool:
        """Whether enough prefills were seen to size a chunk by."""
        return self._num_prefill_steps >= _MIN_PREFILL_STEPS

    def observe(self, num_outputs: int, num_prefill_tokens: int, duration_s: float) -> None:
        """Learn from one step that ran; a duration of 0 (no clock) teaches nothing."""
        if duration_s <= 0:
            return
        self.fastest.observe(num_outputs, num_prefill_tokens, duration_s)
        has_prefill = num_prefill_tokens > 0
        is_steady = False
        if has_prefill or num_outputs != self._latest_decodes:
            self._latest_decodes, self._num_alike = 0 if has_prefill else num_outputs, 0
        else:
            self._num_alike += 1
            is_steady = self._num_alike > _STEADY_DECODES
            if is_steady and self._num_alike % _STEADY_SHARE:
                self._num_unfitted_decodes += 1
                return
        if has_prefill:
            self._num_prefill_steps += 1
            self._largest_prefill = max(num_prefill_tokens, self._largest_prefill * _FORGET)
        self._learn_slope(num_outputs, num_prefill_tokens, duration_s)
        kv = self.num_kv_tokens
        attention_s = kv * (self._output_slope_s * num_outputs + self._token_slope_s * num_prefill_tokens)
        self._moments[has_prefill].add(
            num_outputs, num_prefill_tokens, duration_s, max(duration_s - attention_s, 0.2 * duration_s), is_steady=is_steady
        )
        self._num_unfitted_decodes += 1
        if has_prefill or self._num_unfitted_decodes >= _REFIT_DECODES:
            self._fitted = None
            self._num_unfitted_decodes = 0

    def _learn_slope(self, num_outputs: int, num_prefill_tokens: int, duration_s: float) -> None:
        """From steps in which nearly everything is of one kind; the rest is taken off as it is predicted."""
        if self._num_prefill_steps < _MATURE_PREFILL_STEPS:
            return
        base_s, output_s, token_s = self.coefficients
        weight = 1.0 / duration_s
        if num_prefill_tokens >= _MIN_SLOPE_TOKENS:
            own_s = duration_s - base_s - output_s * num_outputs
            if own_s > duration_s / 2:
                self._correct(own_s / (token_s * num_prefill_tokens) if token_s > 0 else 1.0)
                self._token_slope.observe(self.num_kv_tokens, own_s / num_prefill_tokens, weight * num_prefill_tokens)
                self._token_slope_s = self._token_slope.value
        elif not num_prefill_tokens and num_outputs:
            self._output_slope.observe(self.num_kv_tokens, (duration_s - base_s) / num_outputs, weight * num_outputs)
            if self._num_unfitted_decodes == 0:
                self._output_slope_s = self._output_slope.value

    def _correct(self, ratio: float) -> None:
        """A chunk's tokens took `ratio` times as long as was predicted: believe a part of it at once.

        Cost is not quite linear (attention of fewer than 64 rows runs on a slower path of the CPU backend), and both the fit and
        the slopes are slower than the size of chunks changes.
        """
        seen = self._token_error * max(1 - _MAX_ERROR, min(ratio, 1 + _MAX_ERROR))
        error = self._token_error + _ERROR_WEIGHT * (seen - self._token_error)
        self._token_error = max(1 - _MAX_ERROR, min(error, 1 + _MAX_ERROR))

    def predict_s(self, num_outputs: int, num_prefill_tokens: int) -> float:
        c0, c_out, c_tok = self.coefficients
        return c0 + c_out * num_outputs + c_tok * num_prefill_tokens

    def idle_cell_s(self, num_outputs: int, num_prefill_tokens: int) -> float:
        """What one more cell in use, of whomever, adds to a step; 0 until it is known."""
        return self._output_slope_s * num_outputs + self._token_slope_s * num_prefill_tokens

    def prefill_tokens_within(self, target_s: float, num_outputs: int) -> int:
        """How many prefill tokens fit into `target_s` beside the outputs; may be 0.

        At most twice the largest number seen lately: the fit is not trusted far outside of what it was made from. Where tokens
        seem to cost nothing (a GPU with small chunks), that is the whole bound.
        """
        assert self.is_fitted, "no prefill was observed yet"
        rest_s = target_s - self.predict_s(num_outputs, 0)
        limit = int(_MAX_GROWTH * self._largest_prefill)
        if rest_s <= 0:
            return 0
        per_token_s = self.coefficients[2]
        return int(min(rest_s / per_token_s, limit)) if per_token_s > 0 else limit


class _Moments:
    """Fading sums of x x^T and x y over weighted observations; x = (1, outputs, tokens), y = own time; all weighted by 1/t.

    Written out, since it is done at every step: `oo` is the sum of outputs^2, `yt` that of y * tokens, and so on.
    """

    __slots__ = ("oo", "oy", "to", "tt", "ty", "uo", "ut", "uu", "uy")

    def __init__(self) -> None:
        self.uu = self.uo = self.ut = self.oo = self.to = self.tt = 0.0
        self.uy = self.oy = self.ty = 0.0

    def add(self, num_outputs: float, num_tokens: float, duration_s: float, own_s: float, *, is_steady: bool = False) -> None:
        """A step that took `duration_s`, `own_s` of it without what the pool adds; `is_steady`: and so did those left out."""
        kept, weight = (_KEPT_OF_STEADY, _STEADY_WEIGHT) if is_steady else (_FORGET, 1.0)
        unit = 1.0 / duration_s
        share = own_s * unit * weight
        outputs, tokens = num_outputs * unit, num_tokens * unit
        self.uu = self.uu * kept + unit * unit * weight
        self.uo = self.uo * kept + unit * outputs * weight
        self.ut = self.ut * kept + unit * tokens * weight
        self.oo = self.oo * kept + outputs * outputs * weight
        self.to = self.to * kept + tokens * outputs * weight
        self.tt = self.tt * kept + tokens * tokens * weight
        self.uy = self.uy * kept + share * unit
        self.oy = self.oy * kept + share * outputs
        self.ty = self.ty * kept + share * tokens


def _fit(a: _Moments, b: _Moments) -> Row:
    """Least squares with no negative coefficient: the most negative one is fixed at 0 until none is left."""
    uu, uo, ut, oo, to, tt = a.uu + b.uu, a.uo + b.uo, a.ut + b.ut, a.oo + b.oo, a.to + b.to, a.tt + b.tt
    all_xx, all_xy = ((uu, uo, ut), (uo, oo, to), (ut, to, tt)), (a.uy + b.uy, a.oy + b.oy, a.ty + b.ty)
    row = _solve_three(all_xx, all_xy)
    lowest = min(row)
    if lowest >= 0:
        return row
    kept = [0, 1, 2]
    del kept[row.index(lowest)]
    while kept:
        xx = [[all_xx[i][j] for j in kept] for i in kept]
        xy = [all_xy[i] for i in kept]
        solution = _solve(xx, xy)
        worst = min(range(len(kept)), key=solution.__getitem__)
        if solution[worst] >= 0:
            full = dict(zip(kept, solution, strict=True))
            return (full.get(0, 0.0), full.get(1, 0.0), full.get(2, 0.0))
        del kept[worst]
    return (0.0, 0.0, 0.0)


def _solve_three(matrix: tuple[Row, Row, Row], right: Row) -> Row:
    """`_solve` for three unknowns, written out: it is done for every step with a prefill."""
    (a00, a01, a02), (a10, a11, a12), (a20, a21, a22) = matrix
    y0, y1, y2 = right
    a00 += _RIDGE * a00 + 1e-12
    a11 += _RIDGE * a11 + 1e-12
    a22 += _RIDGE * a22 + 1e-12
    factor = a10 / a00
    a11, a12, y1 = a11 - factor * a01, a12 - factor * a02, y1 - factor * y0
    factor = a20 / a00
    a21, a22, y2 = a21 - factor * a01, a22 - factor * a02, y2 - factor * y0
    factor = a21 / a11
    a22, y2 = a22 - factor * a12, y2 - factor * y1
    x2 = y2 / a22
    x1 = (y1 - a12 * x2) / a11
    return ((y0 - (a01 * x1 + a02 * x2)) / a00, x1, x2)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small symmetric system by elimination; each diagonal is raised by a relative ridge, so it is never singular."""
    size = len(right)
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for i in range(size):
        rows[i][i] += _RIDGE * matrix[i][i] + 1e-12
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [value - factor * pivot for value, pivot in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - rest) / rows[i][i]
    return solution
