"""The model's recommendations win over defaults, and a person wins over both."""

import logging

from ultrafast.config.given import Given
from ultrafast.config.load import load_settings
from ultrafast.config.recommended import with_recommendations
from ultrafast.config.settings import SamplingSettings

METADATA = {"general.sampling.temp": "0.6", "general.sampling.top_k": "20", "general.name": "x"}


def test_order_of_precedence():
    settings = load_settings({}, None, {"sampling.top_k": Given("7", "--set")}).settings
    sampling = with_recommendations(settings.sampling, METADATA)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 7, SamplingSettings().top_p)


def test_nothing_recommended_changes_nothing():
    assert with_recommendations(SamplingSettings(), {}) == SamplingSettings()


def test_an_unusable_recommendation_is_said_and_left_out(caplog):
    metadata = {"general.sampling.top_p": "7", "general.sampling.top_k": "many"}
    with caplog.at_level(logging.WARNING):
        assert with_recommendations(SamplingSettings(), metadata) == SamplingSettings()
    assert "general.sampling.top_p = 7" in caplog.text
    assert "general.sampling.top_k = many" in caplog.text
