"""Our latency histograms once more under the names of OpenTelemetry's conventions for generative AI.

Tools that know `gen_ai.server.*` find them; nothing is observed twice: the same buckets, shown with other names and labels.
Source: open-telemetry/semantic-conventions-genai, "Generative AI server metrics" (status: development), names and units as
OpenTelemetry's rules for Prometheus write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Histogram, Metric
from prometheus_client.registry import Collector

PROVIDER = "ultrafast"
OPERATION = "chat"
"""Of all generations: the conventions want one, and our histograms do not tell chat from plain completions."""


class GenAiNames(Collector):
    """Shows histograms with the label `tier` under other names.

    Args:
        histograms: by the name that they get, without `_bucket`, `_sum` and `_count`.
    """

    def __init__(self, histograms: Mapping[str, Histogram]) -> None:
        self._histograms = histograms
        self.model = ""
        """What the API calls the model."""

    def describe(self) -> Iterable[Metric]:
        return [Metric(name, "", "histogram") for name in self._histograms]

    def collect(self) -> Iterable[Metric]:
        fixed = {"gen_ai_operation_name": OPERATION, "gen_ai_provider_name": PROVIDER, "gen_ai_request_model": self.model}
        for name, histogram in self._histograms.items():
            for metric in histogram.collect():
                shown = Metric(name, f"The same as {metric.name}, under OpenTelemetry's name.", "histogram")
                for sample in metric.samples:
                    labels = {label: value for label, value in sample.labels.items() if label != "tier"}
                    tier = {"openai_response_service_tier": sample.labels["tier"]}
                    shown.add_sample(name + sample.name.removeprefix(metric.name), fixed | tier | labels, sample.value)
                yield shown
