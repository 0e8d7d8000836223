"""What is on in which pipeline, and which settings that is."""

import pytest

from ultrafast.bench.ablate.pipelines import OPTIMISATIONS, check_switches, make_pipelines, order_of
from ultrafast.config.keys import SETTING_KEYS
from ultrafast.core.errors import ConfigError

NAMES = [one.name for one in OPTIMISATIONS]
PIPELINES = make_pipelines(has_left_out=True)
BY_NAME = {pipeline.name: pipeline for pipeline in PIPELINES}
DEFAULTS = {dotted: key.default for dotted, key in SETTING_KEYS.items()}


def test_the_naive_one_first_then_each_alone_then_all_then_all_but_one():
    assert [pipeline.name for pipeline in make_pipelines()] == ["naive", *NAMES, "together"]
    assert [pipeline.name for pipeline in PIPELINES[len(NAMES) + 2 :]] == [f"without-{name}" for name in NAMES]


def test_every_setting_exists():
    assert {name for one in OPTIMISATIONS for name in (*one.off, *one.on)} <= set(SETTING_KEYS)


def test_all_together_is_the_server_as_it_is():
    together = BY_NAME["together"]
    assert together.is_streamed
    assert all(DEFAULTS[name] == value for name, value in together.settings.items())


def test_the_naive_one_has_nothing():
    settings = BY_NAME["naive"].settings
    assert not BY_NAME["naive"].is_streamed
    assert all(DEFAULTS[name] != value for name, value in settings.items() if name != "engine.kv_disk_bytes")
    assert settings["engine.max_num_running"] == 1


@pytest.mark.parametrize("one", OPTIMISATIONS, ids=lambda one: one.name)
def test_each_alone_differs_from_the_naive_one_in_its_own_switch_and_what_it_needs(one):
    naive, alone = BY_NAME["naive"], BY_NAME[one.name]
    changed = {name for name in naive.settings if naive.settings[name] != alone.settings.get(name)}
    needed = [other for other in OPTIMISATIONS if other.name in (one.name, *one.needs)]
    assert changed == {name for other in needed for name in other.off}
    assert alone.is_streamed == one.is_streaming
    assert alone.base == (one.needs[0] if one.needs else "naive")


@pytest.mark.parametrize("one", OPTIMISATIONS, ids=lambda one: one.name)
def test_all_but_one_lacks_it_and_what_needs_it(one):
    on = BY_NAME[f"without-{one.name}"].on
    assert one.name not in on
    assert set(NAMES) - on == {one.name, *(other.name for other in OPTIMISATIONS if one.name in other.needs)}


def test_only_chosen_ones_in_the_order_of_the_table():
    chosen = make_pipelines(["without-streaming", "together", "segments"])
    assert [pipeline.name for pipeline in chosen] == ["naive", "segments", "together", "without-streaming"]
    with pytest.raises(ConfigError, match="no pipeline speed") as caught:
        make_pipelines(["speed"])
    assert "together" in caught.value.hint


def test_the_order_holds_everybody_once_and_is_balanced():
    pipelines = make_pipelines()
    rounds = [order_of(pipelines, number) for number in range(20)]
    assert all(sorted(order, key=pipelines.index) == pipelines for order in rounds)
    assert rounds[1] == rounds[0][::-1]
    mean = {one.name: sum(order.index(one) for order in rounds) / len(rounds) for one in pipelines}
    assert set(mean.values()) == {4.5}


def test_settings_that_leave_nothing_to_switch_are_refused():
    check_switches(DEFAULTS, {})
    check_switches(DEFAULTS | {"engine.max_num_running": 8}, {"engine.max_num_running": "--max-running"})
    with pytest.raises(ConfigError, match="scheduler cannot be switched on"):
        check_switches(DEFAULTS | {"engine.max_num_running": 1}, {})
    with pytest.raises(ConfigError, match="KV levels cannot be switched on"):
        check_switches(DEFAULTS | {"engine.kv_host_bytes": 0}, {})
    with pytest.raises(ConfigError, match=r"--set engine.flash_attention=true: the ablation switches"):
        check_switches(DEFAULTS, {"engine.flash_attention": "--set engine.flash_attention=true"})
