"""What an engine is: read from text, files and servers, or refused."""

import json

import pytest

from ultrafast.bench.simulate.engine_spec import StepCost, decode_engine, make_limits, parse_cost, read_engine_file, spec_of
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import DEFAULT_POLICIES

DESCRIBED = {
    "model": "m",
    "kv_capacity_tokens": 4096,
    "max_request_tokens": 2048,
    "max_step_tokens": 256,
    "max_num_running": 8,
    "max_num_paused": 4,
    "max_num_cached": 16,
    "max_cached_tokens": 1000,
    "step_target_s": 0.04,
    "base_s": 0.002,
    "output_s": 0.007,
    "token_s": 0.0055,
    "num_steps": 12,
}


def test_a_cost_is_read_in_milliseconds():
    cost = parse_cost("base=2, output=7,token=5.5,noise=0.1")
    assert cost == StepCost(0.002, 0.007, 0.0055, 0.1)
    assert cost.step_s(2, 10) == pytest.approx(0.071)


@pytest.mark.parametrize("text", ["", "base=2", "base=2,output=7,token=x", "base=2,output=7,token=1,speed=3", "base=1,output=1"])
def test_a_bad_cost_is_refused_with_the_form(text):
    with pytest.raises(ConfigError) as refused:
        parse_cost(text)
    assert "base=2,output=7" in refused.value.hint


@pytest.mark.parametrize("values", [(-1.0, 1, 1), (0, 0, 0), (float("nan"), 1, 1), (1, 1, float("inf"))])
def test_a_cost_that_no_step_can_have_is_refused(values):
    with pytest.raises(ConfigError):
        StepCost(*values)


def test_zeros_are_filled_in():
    limits = make_limits(max_num_running=600)
    assert (limits.kv_capacity_tokens, limits.max_request_tokens, limits.max_cached_tokens) == (65_536, 65_536, 16_384)
    assert (limits.max_step_tokens, limits.max_num_paused, limits.step_target_s) == (600, 600, 0.05)
    assert not limits.enable_speculation


def test_an_engine_is_described_in_a_file(tmp_path):
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(DESCRIBED))
    spec = spec_of(read_engine_file(file), DEFAULT_POLICIES, "file")
    assert (spec.limits.kv_capacity_tokens, spec.limits.max_request_tokens, spec.limits.max_num_paused) == (4096, 2048, 4)
    assert spec.cost == StepCost(0.002, 0.007, 0.0055)
    assert spec.source == "fitted over 12 steps of m"


def test_a_description_says_what_can_be_reused_and_held_back(tmp_path):
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(DESCRIBED | {"can_trim": False, "enable_prefix_cache": False, "enable_reservation": False}))
    limits = spec_of(read_engine_file(file), DEFAULT_POLICIES, "file").limits
    assert (limits.can_trim, limits.enable_prefix_cache, limits.enable_reservation) == (False, False, False)
    changed = spec_of(read_engine_file(file), DEFAULT_POLICIES, "file", {"enable_reservation": True, "max_num_running": 2}).limits
    assert (changed.enable_reservation, changed.enable_prefix_cache, changed.max_num_running) == (True, False, 2)


@pytest.mark.parametrize("change", [{"base_s": "x"}, {"extra": 1}])
def test_what_is_no_description_is_refused(change):
    with pytest.raises(ConfigError, match="does not describe"):
        decode_engine(json.dumps(DESCRIBED | change).encode(), "there")


def test_an_engine_that_has_not_run_is_refused_with_advice():
    with pytest.raises(ConfigError, match="no cost of a step yet") as refused:
        decode_engine(json.dumps(DESCRIBED | {"base_s": 0, "output_s": 0, "token_s": 0}).encode(), "there")
    assert "ultrafast bench" in refused.value.hint


def test_a_missing_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_engine_file(tmp_path / "none.json")
