"""`ultrafast simulate`: what it reads, prints and refuses."""

import json

import pytest

from ultrafast.cli.main import main

FAST = ["simulate", "--cost", "base=4,output=0.5,token=0.05", "--class", "ultrafast=1:50/4", "--num-prompts", "60"]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2024-05-10 00:00:{i:02}.0000000,100,5\n" for i in range(20))


def test_json_has_every_figure(capsys):
    assert main([*FAST, "--json", "--replicas", "1,2", "--no-tiers"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [outcome["name"] for outcome in told["outcomes"]] == ["1 x, tiers", "1 x, no tiers", "2 x, tiers", "2 x, no tiers"]
    (tier,) = told["outcomes"][0]["tiers"]
    assert (tier["tier"], tier["num_requests"], tier["attainment"]) == ("ultrafast", 60, 1.0)
    assert told["cost"] == {"base_s": 0.004, "output_s": 0.0005, "token_s": 0.00005, "noise": 0.0, "source": "given"}


def test_the_table_names_cost_traffic_and_speed(capsys):
    assert main(FAST) == 0
    told = capsys.readouterr().out
    assert "60 requests at 1/s, poisson, seed 0" in told
    assert "step = 4 ms + 0.5 per output + 0.05 per prefill token (given)" in told
    assert "100.0 %" in told
    assert "times real time" in told


def test_without_a_cost_it_says_that_one_was_assumed(capsys):
    assert main(["simulate", "--num-prompts", "5"]) == 0
    assert "assumed: about the bundled model" in capsys.readouterr().out


def test_a_trace_with_tiers_and_speed(tmp_path, capsys):
    trace = tmp_path / "azure.csv"
    trace.write_text(AZURE)
    options = ["--trace", str(trace), "--trace-speed", "2", "--tier-mix", "flex=0.5,ultrafast=0.5"]
    assert main(["simulate", *FAST[1:3], *options, "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert outcome["window_s"] == 9.5
    assert [tier["num_requests"] for tier in outcome["tiers"]] == [10, 10]


def test_settings_make_the_engine(tmp_path, capsys):
    file = tmp_path / "ultrafast.toml"
    file.write_text("[tiers.ultrafast]\nttft_ms = 3\n[engine]\nkv_capacity_tokens = 900\n")
    assert main([*FAST, "--config", str(file), "--set", "engine.step_target_s=0.03", "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert (outcome["kv_tokens"], outcome["step_target_s"]) == (900, 0.03)
    assert outcome["tiers"][0]["attainment"] == 0.0


def _limits(options, monkeypatch):
    """The limits that the command simulates with."""
    seen = []
    monkeypatch.setattr("ultrafast.cli.simulate.simulate_all", lambda setup, *_: seen.append(setup.engine.limits) or [])
    monkeypatch.setattr("ultrafast.cli.simulate._tell", lambda *_: None)
    assert main(["simulate", *options]) == 0
    return seen[0]


@pytest.mark.parametrize("source", ["assumed", "cost", "engine", "config"])
def test_settings_of_reuse_and_reservation_reach_the_scheduler(source, tmp_path, monkeypatch):
    described = {"kv_capacity_tokens": 4096, "max_request_tokens": 2048, "max_step_tokens": 256, "max_num_running": 8}
    described |= {"max_num_paused": 4, "max_num_cached": 16, "max_cached_tokens": 1000, "step_target_s": 0.04, "num_steps": 9}
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(described | {"base_s": 0.1, "output_s": 0, "token_s": 0, "can_trim": False}))
    config = tmp_path / "ultrafast.toml"
    config.write_text(
        "[engine]\nkv_capacity_tokens = 0\nenable_reservation = false\nenable_prefix_cache = false\nmax_num_cached = 0\n"
    )
    sets = [
        "--set",
        "engine.enable_reservation=false",
        "--set",
        "engine.enable_prefix_cache=false",
        "--set",
        "engine.max_num_cached=0",
    ]
    options = {"assumed": sets, "cost": [*FAST[1:3], *sets], "engine": ["--engine", str(file), *sets]}
    options["config"] = ["--engine", str(file), "--config", str(config)]
    limits = _limits(options[source], monkeypatch)
    assert (limits.enable_reservation, limits.enable_prefix_cache, limits.max_num_cached) == (False, False, 0)
    is_described = source in ("engine", "config")
    assert (limits.kv_capacity_tokens == 4096, limits.max_num_running == 8, limits.can_trim) == (
        is_described,
        is_described,
        not is_described,
    )


def test_settings_in_a_file_that_are_not_simulated_are_named(tmp_path, capsys):
    file = tmp_path / "ultrafast.toml"
    file.write_text("[server]\nport = 1\n[engine]\nkv_host_bytes = 5\nmax_num_running = 3\n[tiers.flex]\nprice_output = 3\n")
    assert main([*FAST, "--config", str(file)]) == 0
    assert "note: not simulated: engine.kv_host_bytes, tiers.flex.price_output\n" in capsys.readouterr().err
    assert main(FAST) == 0
    assert "not simulated" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "engine.kv_host_bytes=1"], "--set engine.kv_host_bytes: a simulation knows nothing"),
        (["--set", "engine.speculation=off"], "--set engine.speculation: a simulation knows nothing"),
        (["--set", "tiers.flex.e2e_ms=5"], "--set tiers.flex.e2e_ms: a simulation knows nothing"),
        (["--replicas", "0"], "--replicas 0 is no list"),
        (["--kv-tokens", "a"], "--kv-tokens a is no list"),
        (["--engine", "x.json"], "exclude each other"),
        (["--save-engine", "x.json"], "--save-engine needs --fit"),
        (["--tier-mix", "flex=1"], "--tier-mix is for traces"),
        (["--trace", "x"], "--trace and --class exclude"),
        (["--trace-speed", "0", "--trace", "x"], "--trace and --class exclude"),
        (["--request-rate", "0"], "makes no schedule"),
        (["--set", "engine"], "there is no `=`"),
        (["--kv-tokens", "10", "--set", "engine.max_num_running=0"], "must be an integer"),
    ],
)
def test_wrong_usage_is_said_with_a_hint(options, message, capsys):
    assert main([*FAST, *options]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "hint: " in told


@pytest.mark.parametrize(
    ("name", "content", "option", "code", "message"),
    [
        ("none.csv", None, "--trace", 1, "cannot be read: No such file or directory."),
        ("empty.csv", "", "--trace", 1, "holds no requests"),
        ("head.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "--trace", 1, "holds no requests"),
        ("none.json", None, "--engine", 2, "cannot be read: No such file or directory."),
        ("text.json", "hello", "--engine", 2, "does not describe an engine"),
        ("other.json", '{"x": 1}', "--engine", 2, "does not describe an engine"),
    ],
)
def test_a_file_that_is_none_is_said_with_a_hint(tmp_path, capsys, name, content, option, code, message):
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    assert main(["simulate", "--num-prompts", "3", option, str(file)]) == code
    told = capsys.readouterr().err.splitlines()
    assert str(file) in told[0]
    assert message in told[0]
    assert told[-1].startswith("hint: ")


@pytest.mark.parametrize(("url", "code"), [("http://127.0.0.1:9", 1), ("ftp://nowhere", 2)])
def test_a_server_that_does_not_answer_is_named_by_an_option_that_exists(capsys, url, code):
    assert main(["simulate", "--fit", url]) == code
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.startswith("hint: ")
    assert "--url" not in hint
