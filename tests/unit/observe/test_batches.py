"""Many samples at once are the same samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from ultrafast.observe.batches import observe_all

EDGES = (0.1, 0.25, 1.0)
# Binary fractions: their sums are exact in any order.
values = st.integers(0, 128).map(lambda number: number / 64) | st.sampled_from(EDGES[1:])


@given(st.lists(st.tuples(values, st.integers(1, 4)), max_size=20))
def test_a_batch_is_as_good_as_one_by_one(samples: list[tuple[float, int]]) -> None:
    registry = CollectorRegistry()
    one_by_one, together = (Histogram(name, name, ["x"], buckets=EDGES, registry=registry) for name in ("a", "b"))
    children = one_by_one.labels("1"), together.labels("1")
    observe_all(children[1], samples)
    for value, count in samples:
        for _ in range(count):
            children[0].observe(value)
    assert read(one_by_one) == read(together) != []


def read(histogram: Histogram) -> list[float]:
    samples = [sample for metric in histogram.collect() for sample in metric.samples]
    return [sample.value for sample in samples if not sample.name.endswith("_created")]


def test_a_bound_belongs_to_its_bucket() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("a", "a", buckets=EDGES, registry=registry)
    observe_all(histogram, [(0.25, 2), (99.0, 1)])
    assert registry.get_sample_value("a_bucket", {"le": "0.1"}) == 0
    assert registry.get_sample_value("a_bucket", {"le": "0.25"}) == 2
    assert registry.get_sample_value("a_count") == 3
