"""The cost model: how long a step takes, learnt from the steps that ran.

    t = c0 + c_out * num_outputs + c_tok * num_prefill_tokens         seconds

Least squares with forgetting. Steps that only decode and steps that also prefill are remembered apart, each class fading only as
new steps of its kind come: an hour of pure decoding must not wash out what a prefill token costs. Each observation is weighted by
1/t, so that relative errors count and one stalled step does not tilt the fit.
"""

from __future__ import annotations

_FORGET = 0.95
_MIN_PREFILL_STEPS = 3
_MAX_GROWTH = 2
_RIDGE = 1e-6

Row = tuple[float, float, float]


class CostModel:
    """Predicts step times. Pure arithmetic on three coefficients; a prediction costs some multiplications."""

    def __init__(self) -> None:
        self._moments = {True: _Moments(), False: _Moments()}
        self._num_prefill_steps = 0
        self._largest_prefill = 0.0
        self._fitted: Row | None = (0.0, 0.0, 0.0)  # None: observed something since

    @property
    def coefficients(self) -> Row:
        """(c0, c_out, c_tok) in seconds; zeros before the first observation."""
        if self._fitted is None:
            self._fitted = _fit(self._moments[True], self._moments[False])
        return self._fitted

    @property
    def is_fitted(self) -> bool:
        """Whether enough prefills were seen to size a chunk by."""
        return self._num_prefill_steps >= _MIN_PREFILL_STEPS

    def observe(self, num_outputs: int, num_prefill_tokens: int, duration_s: float) -> None:
        """Learn from one step that ran; a duration of 0 (no clock) teaches nothing."""
        if duration_s <= 0:
            return
        has_prefill = num_prefill_tokens > 0
        if has_prefill:
            self._num_prefill_steps += 1
            self._largest_prefill = max(num_prefill_tokens, self._largest_prefill * _FORGET)
        self._moments[has_prefill].add((1.0, float(num_outputs), float(num_prefill_tokens)), duration_s)
        self._fitted = None  # nobody asks while everybody only decodes: the fit is not made at every step

    def predict_s(self, num_outputs: int, num_prefill_tokens: int) -> float:
        c0, c_out, c_tok = self.coefficients
        return c0 + c_out * num_outputs + c_tok * num_prefill_tokens

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
    """Fading sums of x x^T and x y over weighted observations; x has three entries, y = 1 after the weighting by 1/t."""

    def __init__(self) -> None:
        self.xx = [[0.0] * 3 for _ in range(3)]
        self.xy = [0.0] * 3

    def add(self, row: Row, duration_s: float) -> None:
        scaled = [value / duration_s for value in row]
        for i in range(3):
            self.xy[i] = self.xy[i] * _FORGET + scaled[i]
            for j in range(3):
                self.xx[i][j] = self.xx[i][j] * _FORGET + scaled[i] * scaled[j]


def _fit(a: _Moments, b: _Moments) -> Row:
    """Least squares with no negative coefficient: the most negative one is fixed at 0 until none is left."""
    kept = [0, 1, 2]
    while kept:
        xx = [[a.xx[i][j] + b.xx[i][j] for j in kept] for i in kept]
        xy = [a.xy[i] + b.xy[i] for i in kept]
        solution = _solve(xx, xy)
        worst = min(range(len(kept)), key=solution.__getitem__)
        if solution[worst] >= 0:
            full = dict(zip(kept, solution, strict=True))
            return (full.get(0, 0.0), full.get(1, 0.0), full.get(2, 0.0))
        del kept[worst]
    return (0.0, 0.0, 0.0)


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
