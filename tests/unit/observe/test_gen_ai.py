"""Histograms under OpenTelemetry's names."""

from prometheus_client.parser import text_string_to_metric_families

from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder


def test_the_same_samples_with_other_names_and_labels():
    metrics = Metrics(ttft_objectives_s=[0.123])
    Recorder(metrics).describe_build("1", "b1", "tiny")
    metrics.ttft.labels("flex").observe(0.11)
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    ours, theirs = (families[name].samples for name in ("ultrafast_ttft_seconds", "gen_ai_server_time_to_first_token_seconds"))
    assert [sample.value for sample in ours] == [sample.value for sample in theirs]
    labels = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "ultrafast",
        "gen_ai_request_model": "tiny",
        "openai_response_service_tier": "flex",
    }
    buckets = {
        sample.labels["le"]: sample for sample in theirs if labels.items() <= sample.labels.items() and "le" in sample.labels
    }
    assert (buckets["0.1"].value, buckets["0.123"].value) == (0.0, 1.0)
    assert buckets["0.123"].name == "gen_ai_server_time_to_first_token_seconds_bucket"
