"""What is compared: a figure of a whole run, and the values of its requests behind it."""

from __future__ import annotations

import math
import re

import msgspec
import numpy as np

from ultrafast.bench.figures import figures_of
from ultrafast.bench.gate.samples import is_of_tier
from ultrafast.bench.metrics import ADJUSTED, METRICS, throughput_of, values_of
from ultrafast.bench.records import Run
from ultrafast.bench.stats.gaps import pooled_jitter
from ultrafast.bench.stats.percentiles import Samples, nearest_rank
from ultrafast.core.errors import ConfigError

_FORM = re.compile(r"^(?P<metric>[a-z0-9_]+)(?::p(?P<percentile>\d+(?:\.\d+)?))?$")
_WHOLE = ("jitter", "throughput", "requests")


class Figure(msgspec.Struct, frozen=True):
    """A figure of a run.

    Attributes:
        metric: a metric of a request (then with `quantile`), or `jitter` (pooled), `throughput` (output tokens per second),
            `requests` (per second).
        quantile: in (0, 1), or None for a figure of the whole run.
    """

    metric: str
    quantile: float | None = None

    @property
    def name(self) -> str:
        return self.metric if self.quantile is None else f"{self.metric} p{self.quantile * 100:g}"

    @property
    def is_more_better(self) -> bool:
        """Whether a larger figure is the better one."""
        return self.metric in ("throughput", "requests")

    @property
    def unit(self) -> str:
        """For reports; times are seconds in data and milliseconds for people."""
        return {"throughput": "tokens/s", "requests": "requests/s"}.get(self.metric, "ms")


DEFAULT_FIGURES = (
    *(Figure("ttft", quantile) for quantile in (0.5, 0.9, 0.95, 0.99)),
    *(Figure("gap", quantile) for quantile in (0.5, 0.9, 0.95, 0.99)),
    Figure("jitter"),
    Figure("throughput"),
)


def parse_figure(text: str) -> Figure:
    """Read `ttft:p99`, `jitter` or `throughput`.

    Raises:
        ConfigError: no such figure.
    """
    found = _FORM.match(text.strip().lower())
    percentile = float(found["percentile"]) if found and found["percentile"] else None
    if found and percentile is None and found["metric"] in _WHOLE:
        return Figure(found["metric"])
    if found and percentile is not None and 0 < percentile < 100 and found["metric"] in METRICS:
        return Figure(found["metric"], round(percentile / 100, 9))
    hint = f"Write jitter, throughput, requests, or METRIC:pNN with one of {', '.join(METRICS)}."
    raise ConfigError(f"{text!r} is no figure to compare.", code="invalid_figure", hint=hint)


class Measured:
    """A run, reduced once: the values of a metric per request, whatever number of figures is asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._figures = [figures_of(request) for request in run.requests if request.is_ok]
        self._num_lost = len(run.requests) - len(self._figures)

    def clusters(self, metric: str) -> list[Samples]:
        """Per request, its values; a request that did not succeed is infinitely slow where the metric is in `ADJUSTED`."""
        found: list[Samples] = [values for figures in self._figures if len(values := values_of(figures, metric))]
        return found + [(math.inf,)] * (self._num_lost if metric in ADJUSTED else 0)

    def gaps(self) -> list[Samples]:
        """The gaps of each successful request."""
        return [figures.gaps_s for figures in self._figures]

    def figure(self, figure: Figure) -> float | None:
        """The run's figure; `inf` when failed requests reach into the percentile.

        None when it is not defined, or when the run holds fewer samples than one per 1/(1 - quantile): the figure would be the
        largest sample, and would grow with the number of requests rather than with the server.
        """
        if figure.is_more_better:
            throughput = throughput_of(self.run.requests, self.run.record.window)
            return throughput.output_tokens_per_s if figure.metric == "throughput" else throughput.requests_per_s
        if figure.quantile is None:
            return pooled_jitter(self.gaps())
        values = [value for cluster in self.clusters(figure.metric) for value in cluster]
        return nearest_rank(values, figure.quantile) if len(values) >= smallest_run(figure) else None


def of_tier(run: Run, tier: str | None) -> Run:
    """The run with the requests of one tier only."""
    return run if tier is None else Run(run.record, [request for request in run.requests if is_of_tier(request, tier)])


def smallest_run(figure: Figure) -> int:
    """Samples that a run needs for the figure."""
    if figure.quantile is None:
        return 1
    return math.ceil(1.0 / (1.0 - figure.quantile) - 1e-9)


def mean_tokens(run: Run) -> tuple[float | None, float | None]:
    """Mean prompt and output tokens of the successful requests, as the server counted them."""
    usages = [request.usage for request in run.requests if request.is_ok]
    prompt = [usage.num_prompt_tokens for usage in usages if usage.num_prompt_tokens is not None]
    output = [usage.num_output_tokens for usage in usages if usage.num_output_tokens is not None]
    return (float(np.mean(prompt)) if prompt else None), (float(np.mean(output)) if output else None)
