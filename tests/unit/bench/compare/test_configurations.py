"""Two configurations: what differs, what follows from it, what must not differ."""

import pytest

from ultrafast.bench.compare.conditions import ALL_KEYS, ConditionsDifferError
from ultrafast.bench.compare.configurations import (
    _CAUSES,
    _CONSEQUENCES,
    _WRITTEN,
    Configuration,
    check_alike,
    check_apart,
    consequences,
    differing_settings,
)
from ultrafast.bench.own_server import ReadyLine
from ultrafast.config.keys import SETTING_KEYS
from ultrafast.core.errors import ConfigError

EFFECTIVE = {name: key.default for name, key in SETTING_KEYS.items()}


def side(*words, **settings):
    values = {name.replace("__", "."): value for name, value in settings.items()}
    return Configuration(words, None, {name: str(value) for name, value in values.items()}, EFFECTIVE | values, {})


def ready(**facts):
    values = {"flash_attention": True, "kv_capacity_tokens": 4096, "num_threads": 2, "libllama": "b1"} | facts
    return ReadyLine(url="http://127.0.0.1:1", model="m", **values)


def test_the_tables_name_settings_conditions_and_facts_that_exist():
    assert {*_CONSEQUENCES, *_WRITTEN, *(name for names in _CAUSES.values() for name in names)} <= set(SETTING_KEYS)
    assert {key for keys in _CONSEQUENCES.values() for key in keys} <= set(ALL_KEYS)
    assert set(_CAUSES) <= set(ReadyLine.__struct_fields__)


def test_settings_that_differ_are_named_with_both_values():
    a, b = side(engine__speculation="off"), side(model__served_name="other", engine__enable_prefix_cache=False)
    found = differing_settings(a, b)
    assert [str(mismatch) for mismatch in found] == [
        "model.served_name (A none, B other)",
        "engine.enable_prefix_cache (A true, B false)",
        "engine.speculation (A off, B auto)",
    ]
    assert consequences(found) == ["model"]
    assert differing_settings(a, a) == ()


def test_a_long_value_is_cut():
    (mismatch,) = differing_settings(side(), side(model__pinned_prompts=("x" * 500,)))
    assert len(mismatch.b) == 80
    assert mismatch.b.endswith("...")


def test_what_a_server_chose_for_itself_must_be_the_same_unless_a_setting_explains_it():
    other = differing_settings(side(), side(engine__speculation="off"))
    check_alike(ready(), ready(), other)
    with pytest.raises(ConditionsDifferError, match=r"kv_capacity_tokens \(A 4096, B 2048\)") as caught:
        check_alike(ready(), ready(kv_capacity_tokens=2048), other)
    assert "--restart" in caught.value.hint
    for setting in ({"engine__kv_capacity_tokens": 2048}, {"engine__kv_type_k": "q8_0"}):
        check_alike(ready(), ready(kv_capacity_tokens=2048), differing_settings(side(), side(**setting)))


@pytest.mark.parametrize(
    ("a", "b", "place"),
    [
        ({"request_log__path": "x.jsonl"}, {"request_log__path": "x.jsonl"}, "x.jsonl"),
        ({"engine__kv_disk_bytes": 9}, {"engine__kv_disk_bytes": 8}, "the default folder"),
    ],
)
def test_servers_that_would_write_to_one_place_are_refused(a, b, place):
    with pytest.raises(ConfigError, match=place) as caught:
        check_apart(side(**a), side(**b))
    assert "--restart" in caught.value.hint


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({}, {}),
        ({"request_log__path": "x.jsonl"}, {}),
        ({"request_log__path": "x.jsonl"}, {"request_log__path": "y.jsonl"}),
        ({"engine__kv_disk_bytes": 9}, {}),
        ({"engine__kv_disk_bytes": 9}, {"engine__kv_disk_bytes": 9, "engine__kv_disk_path": "elsewhere"}),
    ],
)
def test_servers_that_write_apart_may_run_together(a, b):
    check_apart(side(**a), side(**b))


def test_the_command_tells_what_is_special_about_a_side():
    assert side().command == "ultrafast serve"
    assert (
        side("--config a.toml", "--set x.y=1", engine__speculation="off").command == "ultrafast serve --config a.toml --set x.y=1"
    )
