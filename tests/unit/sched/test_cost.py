"""The cost model finds the coefficients that made its observations, forgets old ones, and never trusts itself far out."""

from __future__ import annotations

import random

import pytest

from ultrafast.sched.attention import Slope
from ultrafast.sched.cost import CostModel

CPU = (0.002, 0.007, 0.0055)
GPU = (0.012, 0.00005, 0.00001)


def _observe(model: CostModel, truth: tuple[float, float, float], steps: int, seed: int = 1, noise: float = 0.0) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        outputs = rng.randint(0, 8)
        prefill = rng.choice([0, 0, 16, 32, 64, 128]) if outputs else rng.choice([16, 32, 64])
        t = truth[0] + truth[1] * outputs + truth[2] * prefill
        model.observe(outputs, prefill, t * (1 + noise * rng.uniform(-1, 1)))


@pytest.mark.parametrize("truth", [CPU, GPU])
def test_it_finds_the_truth(truth: tuple[float, float, float]) -> None:
    model = CostModel()
    _observe(model, truth, 100)
    for outputs, prefill in [(1, 0), (8, 0), (0, 64), (4, 128)]:
        expected = truth[0] + truth[1] * outputs + truth[2] * prefill
        assert model.predict_s(outputs, prefill) == pytest.approx(expected, rel=0.02)


def test_it_follows_a_machine_that_became_slower() -> None:
    model = CostModel()
    _observe(model, CPU, 200)
    slower = (CPU[0] * 4, CPU[1] * 4, CPU[2] * 4)
    _observe(model, slower, 200, seed=2)
    assert model.predict_s(4, 64) == pytest.approx(slower[0] + slower[1] * 4 + slower[2] * 64, rel=0.1)


def test_long_decoding_does_not_wash_out_the_cost_of_a_prefill_token() -> None:
    model = CostModel()
    _observe(model, CPU, 100)
    for _ in range(10_000):
        model.observe(1, 0, 0.0091)
    assert model.coefficients[2] == pytest.approx(CPU[2], rel=0.1)


def test_one_stalled_step_does_not_tilt_the_fit() -> None:
    model = CostModel()
    _observe(model, CPU, 100)
    model.observe(2, 32, 10.0)
    assert model.predict_s(2, 32) == pytest.approx(CPU[0] + CPU[1] * 2 + CPU[2] * 32, rel=0.2)


def test_noise_gives_no_negative_cost() -> None:
    for seed in range(20):
        model = CostModel()
        _observe(model, GPU, 40, seed=seed, noise=0.5)
        assert min(model.coefficients) >= 0


def test_it_is_not_fitted_before_some_prefills() -> None:
    model = CostModel()
    for _ in range(50):
        model.observe(1, 0, 0.01)
    assert not model.is_fitted
    for _ in range(3):
        model.observe(0, 32, 0.2)
    assert model.is_fitted


def test_chunks_grow_at_most_twofold_per_step() -> None:
    model = CostModel()
    for _ in range(3):
        model.observe(0, 32, 0.012)
    assert model.prefill_tokens_within(10.0, 0) <= 64


def test_no_prefill_fits_beside_decodes_that_take_the_whole_target() -> None:
    model = CostModel()
    _observe(model, CPU, 100)
    assert model.prefill_tokens_within(0.05, 20) == 0
    assert model.prefill_tokens_within(0.1, 4) == pytest.approx((0.1 - 0.002 - 0.028) / 0.0055, abs=1)


def test_steps_without_a_duration_teach_nothing() -> None:
    model = CostModel()
    model.observe(1, 16, 0.0)
    assert model.coefficients == (0.0, 0.0, 0.0)


def _prompts(model: CostModel, slope_s: float, rng: random.Random, num_prompts: int = 8) -> list[float]:
    """Prompts, every second one beside a stream and so in small chunks, into a pool that fills and empties.

    Fewer than 64 rows pay twice for attention. Returns measured over predicted times of the small chunks, without the first five.
    """
    ratios: list[float] = []
    for prompt in range(num_prompts):
        num_outputs, target_s = (1, 0.2) if prompt % 2 else (0, 1.0)
        kv, steps = rng.choice([0, 300]), 0
        while kv < 1700:
            model.num_kv_tokens = kv
            tokens = min(256, max(16, model.prefill_tokens_within(target_s, num_outputs))) if model.is_fitted else 32
            cell_s = slope_s if tokens + num_outputs >= 64 else 2 * slope_s
            t = (0.004 + (0.008 + 0.2e-6 * kv) * num_outputs + (0.0033 + cell_s * kv) * tokens) * rng.uniform(0.97, 1.03)
            steps += 1
            if num_outputs and steps > 5:
                ratios.append(t / model.predict_s(num_outputs, tokens))
            model.observe(num_outputs, tokens, t)
            kv += tokens
            if num_outputs:
                model.observe(1, 0, 0.012 + 0.2e-6 * kv)
    return ratios


def test_a_prompt_that_gets_longer_is_predicted_as_well_as_one_that_does_not() -> None:
    """A token beside 1,700 others takes more than twice as long as the first, in a small chunk."""
    ratios = _prompts(CostModel(), 1.5e-6, random.Random(1))
    assert 0.9 < sum(ratios) / len(ratios) < 1.02, "the fit alone is a quarter too low"
    assert sorted(ratios)[int(0.95 * len(ratios))] < 1.12


def test_where_attention_costs_nothing_nothing_is_made_of_noise() -> None:
    model = CostModel()
    ratios = _prompts(model, 0.0, random.Random(2))
    assert abs(sum(ratios) / len(ratios) - 1) < 0.02
    model.num_kv_tokens = 0
    empty_s = model.predict_s(1, 48)
    model.num_kv_tokens = 1700
    assert model.predict_s(1, 48) == pytest.approx(empty_s, rel=0.1)


def test_an_empty_pool_never_costs_nothing() -> None:
    slope = Slope()
    for kv in range(1000, 5000, 100):
        slope.observe(kv, 1e-6 * kv * kv, 1.0)
    assert 0 < slope.value * 3000 < 1e-6 * 3000 * 3000
    falling = Slope()
    for kv in range(0, 5000, 100):
        falling.observe(kv, 1.0 - kv / 10_000, 1.0)
    assert falling.value == 0.0


def test_of_many_equal_decodes_it_still_learns_that_the_machine_became_slower() -> None:
    model = CostModel()
    _observe(model, CPU, 100)
    for _ in range(200):
        model.observe(4, 0, CPU[0] + 4 * CPU[1])
    for _ in range(200):
        model.observe(4, 0, 3 * (CPU[0] + 4 * CPU[1]))
    assert model.predict_s(4, 0) == pytest.approx(3 * (CPU[0] + 4 * CPU[1]), rel=0.15)
