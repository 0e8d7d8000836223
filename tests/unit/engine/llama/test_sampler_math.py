"""The parts of sampling that are arithmetic: seeds and log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from ultrafast.engine.llama.sampler import log_probabilities, mix_seed


def test_seeds_of_one_request_all_differ_and_never_mean_random() -> None:
    seeds = [mix_seed(seed, index) for seed in (0, 1, 2**31, 2**63) for index in range(2000)]
    assert len(set(seeds)) > 0.999 * len(seeds)
    assert max(seeds) < 0xFFFFFFFF


def test_neighbouring_seeds_share_no_draws() -> None:
    assert [mix_seed(1, index) for index in range(10)] != [mix_seed(2, index - 1) for index in range(1, 11)]


def test_log_probabilities_match_softmax() -> None:
    logits = np.array([1.0, 3.0, 2.0, -50.0], dtype=np.float32)
    expected = np.log(np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum())
    result = log_probabilities(logits, token=2, num_top=3)
    assert result.logprob == pytest.approx(expected[2], abs=1e-5)
    assert [token for token, _ in result.top] == [1, 2, 0]
    assert [value for _, value in result.top] == pytest.approx([expected[1], expected[2], expected[0]], abs=1e-5)


def test_log_probabilities_survive_huge_logits() -> None:
    result = log_probabilities(np.array([1e4, 0.0], dtype=np.float32), token=0, num_top=1)
    assert result.logprob == pytest.approx(0.0)
