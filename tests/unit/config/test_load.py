"""Settings: precedence, provenance, and errors that name the place and the nearest key."""

import json
from pathlib import Path

import pytest

from ultrafast.config.given import Given
from ultrafast.config.keys import ENV_KEYS, SETTING_KEYS
from ultrafast.config.load import load_settings
from ultrafast.config.settings import Settings
from ultrafast.core.errors import ConfigError


@pytest.fixture
def write_toml(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "ultrafast.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_defaults_need_no_source():
    loaded = load_settings({})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_each_source_wins_over_the_next(write_toml):
    path = write_toml("[server]\nport = 1\nhost = '0.0.0.0'\nmax_body_bytes = 5000\n")
    environ = {"ULTRAFAST_SERVER__PORT": "2", "ULTRAFAST_SERVER__HOST": "::1"}
    loaded = load_settings(environ, path, {"server.port": Given("3", "--port")})
    assert (loaded.settings.server.port, loaded.settings.server.host, loaded.settings.server.max_body_bytes) == (3, "::1", 5000)
    assert loaded.origins["server.port"] == "--port"
    assert loaded.origins["server.host"] == "environment ULTRAFAST_SERVER__HOST"
    assert loaded.origins["server.max_body_bytes"] == f"{path} line 4"
    assert not loaded.is_given("server.read_timeout_s")


@pytest.mark.parametrize(
    ("text", "line", "key", "guess"),
    [
        ("[server]\n# a comment\nprot = 9\n", 3, "server.prot", "server.port"),
        ("[sever]\nport = 9\n", 2, "sever.port", "server.port"),
        ("port = 9\n", 1, "port", "server.port"),
        ("server.hots = 'x'\n", 1, "server.hots", "server.host"),
        ("server = { port = 1, prot = 2 }\n", 1, "server.prot", "server.port"),
        ("[tiers.ultrafast]\nttft = 100\n", 2, "tiers.ultrafast.ttft", "tiers.ultrafast.ttft_ms"),
        ("[engine]\nthreads = 1\n", 2, "engine.threads", "engine.num_threads"),
    ],
)
def test_an_unknown_key_is_refused_with_line_and_nearest_key(write_toml, text, line, key, guess):
    path = write_toml(text)
    with pytest.raises(ConfigError) as caught:
        load_settings({}, path)
    assert caught.value.message == f"{path} line {line}: unknown setting {key}."
    assert caught.value.hint == f"Did you mean {guess}?"


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("[server]\nport = '8080'\n", 2, "an integer"),
        ("[server]\nport = 70000\n", 2, "65535"),
        ("[engine]\nflash_attention = 1\n", 2, "true or false"),
        ("[engine]\n\nkv_type_k = 'f15'\n", 3, "one of f32, f16"),
        ("[sampling]\ntop_p = 0.0\n", 2, "more than 0"),
        ("[server]\nkeepalive_interval_s = inf\n", 2, "finite"),
        ("[model]\npath_or_name = ''\n", 2, "at least 1 character"),
        ("server = 3\n", 1, "server is a section, not a setting; got 3."),
        ("[tiers]\nflex = 3\n", 2, "for example tiers.flex."),
        ("[server.port]\nx = 1\n", 2, "server.port is a setting, not a section; it takes an integer"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(write_toml, text, line, part):
    path = write_toml(text)
    with pytest.raises(ConfigError) as caught:
        load_settings({}, path)
    assert f"{path} line {line}: " in caught.value.message
    assert part in f"{caught.value.message} {caught.value.hint}"


PORT = "server.port must be an integer, at least 0, at most 65535; got"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("port = '8080'", f'{PORT} "8080", which is text.', "Write it without quotes: server.port = 8080"),
        ("port = true", f"{PORT} true, which is a truth value.", "The default is server.port = 8080"),
        ("port = 70000", f"{PORT} 70000.", "The default is server.port = 8080"),
        ("port = [1, 'a']", f'{PORT} [1, "a"], which is a list.', "The default is server.port = 8080"),
        ("port = 1979-05-27", f"{PORT} 1979-05-27, which is a date or time.", "The default is server.port = 8080"),
        ("host = 5", "server.host must be text; got 5, which is an integer.", 'The default is server.host = "127.0.0.1"'),
    ],
)
def test_a_wrong_value_is_said_in_the_words_of_the_file(write_toml, text, message, hint):
    path = write_toml(f"[server]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings({}, path)
    assert caught.value.message == f"{path} line 2: {message}"
    assert caught.value.hint == hint


def test_every_setting_says_what_it_wants(write_toml):
    """Whatever the models grow: of a wrong value the message names place, setting, what it must be and what it got."""
    for key in SETTING_KEYS.values():
        sources = [
            (f"{write_toml(f'{key.dotted} = 1979-05-27')} line 1", {}, None),
            (f"environment {key.env_name}", {key.env_name: "\x01"}, None),
            ("--set", {}, {key.dotted: Given("\x01", "--set")}),
        ]
        is_free_text = "text" in key.type_text and "list" not in key.type_text
        for origin, environ, flags in sources[: 1 if is_free_text else 3]:
            with pytest.raises(ConfigError) as caught:
                load_settings(environ, None if environ or flags else write_toml(f"{key.dotted} = 1979-05-27"), flags)
            assert caught.value.message.startswith(f"{origin}: {key.dotted} must be ")
            assert key.type_text in caught.value.message
            assert "got " in caught.value.message
            assert caught.value.hint
            assert not {"input should", "tuple", "valid "} & set(caught.value.message.split("; got")[0].split(": ", 1))


@pytest.mark.parametrize("is_env", [True, False])
def test_lists_are_given_as_json(is_env):
    def load(text):
        if is_env:
            return load_settings({"ULTRAFAST_MODEL__PINNED_PROMPTS": text})
        return load_settings({}, None, {"model.pinned_prompts": Given(text, "--set model.pinned_prompts")})

    assert load('["Be brief, please.", "@file"]').settings.model.pinned_prompts == ("Be brief, please.", "@file")
    for wrong in ("@file", '"@file"', "[1", "[1]"):
        with pytest.raises(ConfigError, match="must be a list of texts"):
            load(wrong)


@pytest.mark.parametrize(
    ("dotted", "text"), [("server.port", "1_0"), ("sampling.max_tokens", "1_0"), ("sampling.top_p", "0.1_5")]
)
def test_numbers_given_as_text_have_no_underscores(write_toml, dotted, text):
    """Python would read them, in the code and nowhere else; TOML has them, and they stay."""
    for environ, flags in (({SETTING_KEYS[dotted].env_name: text}, None), ({}, {dotted: Given(text, "--set")})):
        with pytest.raises(ConfigError, match=f'{dotted} must be .* \\(in digits only\\); got "{text}"'):
            load_settings(environ, None, flags)
    assert load_settings({}, write_toml("[server]\nport = 1_0\n")).settings.server.port == 10
    assert load_settings({"ULTRAFAST_ENGINE__KV_TYPE_K": "q8_0"}).settings.engine.kv_type_k == "q8_0"


def test_broken_toml_names_the_line(write_toml):
    with pytest.raises(ConfigError, match="line 2") as caught:
        load_settings({}, write_toml("[server]\nhost = localhost\n"))
    assert "quotes" in (caught.value.hint or "")


def test_a_file_of_a_windows_editor_is_read(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 8081\r\n")
    loaded = load_settings({}, file)
    assert loaded.settings.server.port == 8081
    assert loaded.origins["server.port"] == f"{file} line 2"


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_settings({}, tmp_path / "none.toml")


def test_an_unknown_variable_is_refused_and_its_value_not_shown():
    with pytest.raises(ConfigError) as caught:
        load_settings({"ULTRAFAST_API_KEYS": "secret-secret"})
    assert caught.value.message == "Unknown environment variable ULTRAFAST_API_KEYS."
    assert caught.value.hint == "Did you mean ULTRAFAST_API_KEY?"


def test_known_other_variables_and_foreign_ones_are_let_alone():
    load_settings({"ULTRAFAST_CACHE_DIR": "/x", "ULTRAFAST_LIBLLAMA": "/y", "ULTRAFAST_TEST_MODEL": "/z", "PATH": "/bin"})


def test_an_empty_variable_counts_as_not_set():
    assert load_settings({"ULTRAFAST_MODEL__SERVED_NAME": ""}).settings.model.served_name is None


def test_a_wrong_variable_names_itself():
    with pytest.raises(
        ConfigError, match=r"environment ULTRAFAST_ENGINE__SWA_FULL: engine\.swa_full must be true or false; got \"maybe\""
    ):
        load_settings({"ULTRAFAST_ENGINE__SWA_FULL": "maybe"})


@pytest.mark.parametrize(
    "values",
    [
        {"engine.kv_type_v": "q8_0", "engine.flash_attention": "false"},
        {"engine.kv_disk_bytes": "1000000", "engine.kv_host_bytes": "0"},
        {"engine.kv_disk_bytes": "1000000", "engine.enable_prefix_cache": "false"},
        {"engine.max_request_tokens": "4096", "engine.kv_capacity_tokens": "2048"},
        {"engine.max_step_tokens": "4096", "engine.kv_capacity_tokens": "2048"},
        {"engine.max_num_running": "200", "engine.max_num_cached": "55"},
        {"engine.max_num_running": "32", "engine.max_step_tokens": "16"},
        {"sampling.max_tokens": "100", "engine.max_request_tokens": "50"},
    ],
)
def test_contradictions_are_errors_that_name_both_sides(values):
    flags = {dotted: Given(value, f"--set {dotted}") for dotted, value in values.items()}
    with pytest.raises(ConfigError, match="contradict") as caught:
        load_settings({}, None, flags)
    for dotted in values:
        assert f"--set {dotted}" in caught.value.message


@pytest.mark.parametrize("name", ["kv_capacity_tokens", "max_request_tokens", "max_step_tokens"])
def test_tiny_sizes_are_refused_and_zero_is_not(name):
    with pytest.raises(ConfigError, match=f"--set: engine.{name} = 1 is too small"):
        load_settings({}, None, {f"engine.{name}": Given("1", "--set")})
    load_settings({}, None, {f"engine.{name}": Given("0", "--set")})


@pytest.mark.parametrize(
    "wrong",
    ["ttft:p95<=1ms", "itl:p99<=1ms", "ttft:p99<=0ms", "ttft:p99<=5", "ttft<=5ms", "ttft:p99<=1ms<=2ms", "ttft:p50<=1s"],
)
def test_an_objective_for_a_percentile_is_understood_or_refused_with_an_example(wrong):
    given = {"tiers.flex.percentiles": Given(("ttft:p50<=9ms", wrong), "--set")}
    with pytest.raises(ConfigError, match=r"percentile|two objectives") as caught:
        load_settings({}, None, given)
    assert caught.value.param == "tiers.flex.percentiles"
    assert "ttft:p99<=300ms" in (caught.value.hint or "")


@pytest.mark.parametrize("order", [("flex", "priority", "default"), ("flex", "flex", "priority", "default"), ()])
def test_the_order_of_the_tiers_names_each_once(order):
    with pytest.raises(ConfigError, match="each tier once") as caught:
        load_settings({}, None, {"tiers.order": Given(order, "--set")})
    assert caught.value.hint


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]


def test_every_setting_can_come_from_file_and_environment(write_toml):
    """Whatever the models grow, each default written down again is accepted from both sources."""
    given = {key.dotted: key for key in SETTING_KEYS.values() if key.default is not None}
    lines = [f"{dotted} = {_toml(key.default)}" for dotted, key in given.items()]
    environ = {key.env_name: _text(key.default) for key in given.values()}
    assert load_settings({}, write_toml("\n".join(lines))).settings == Settings()
    assert load_settings(environ).settings == Settings()
    assert len(ENV_KEYS) == len(SETTING_KEYS)


def _text(value):
    return json.dumps(value) if isinstance(value, tuple) else str(value)


def _toml(value):
    if isinstance(value, tuple):
        return json.dumps(value)
    return f"'{value}'" if isinstance(value, str) else str(value).lower()
