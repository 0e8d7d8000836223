"""Speculation as samples: what was guessed from the text itself, and what by the draft model."""

from __future__ import annotations

from enum import StrEnum

from ultrafast.core.events import StepFinished
from ultrafast.observe.metrics import Metrics


class Source(StrEnum):
    """Who guessed. ngram: the text repeats itself. draft: the draft model."""

    NGRAM = "ngram"
    DRAFT = "draft"


class SpeculationSeries:
    """Label children, looked up once."""

    def __init__(self, metrics: Metrics) -> None:
        self._drafted = {source: metrics.drafted_tokens.labels(source) for source in Source}
        self._accepted = {source: metrics.accepted_tokens.labels(source) for source in Source}
        self._gain = {source: metrics.spec_gain.labels(source) for source in Source}

    def on_step(self, stats: StepFinished) -> None:
        """Add one step."""
        if stats.num_drafted_tokens:
            self._drafted[Source.NGRAM].inc(stats.num_drafted_tokens - stats.num_model_drafted_tokens)
            self._accepted[Source.NGRAM].inc(stats.num_accepted_tokens - stats.num_model_accepted_tokens)
            self._drafted[Source.DRAFT].inc(stats.num_model_drafted_tokens)
            self._accepted[Source.DRAFT].inc(stats.num_model_accepted_tokens)
        self._gain[Source.NGRAM].set(stats.speculation_gain)
        self._gain[Source.DRAFT].set(stats.draft_model_gain)
