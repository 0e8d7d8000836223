"""`ultrafast compare` on saved runs: exit codes, refusal, output."""

import json

import pytest
from tests.unit.bench.synthetic import request, run_of
from tests.unit.models.gguf_builder import build

from ultrafast.bench.compare.configurations import differing_settings
from ultrafast.bench.record_files import write_run
from ultrafast.cli.bench_options import load_command
from ultrafast.cli.compare_live import _MEANT, _own_options
from ultrafast.cli.compare_serve import configurations
from ultrafast.cli.main import main


def save(directory, ttft_s, *, num_runs=5, **run):
    directory.mkdir()
    for number in range(num_runs):
        values = [request(i, ttft_s * (1 + 0.001 * number)) for i in range(50)]
        write_run(run_of(values, **run), directory / f"{number}.jsonl")
    return str(directory)


@pytest.fixture
def sides(tmp_path):
    return save(tmp_path / "a", 0.1), save(tmp_path / "b", 0.1), save(tmp_path / "slow", 0.12)


@pytest.fixture(autouse=True)
def _model(tmp_path, monkeypatch):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(build())
    monkeypatch.setenv("ULTRAFAST_MODEL__PATH_OR_NAME", str(file))


FIGURE = ["--figure", "ttft:p50", "--figure", "ttft:p90"]


def test_exit_codes(sides, tmp_path, capsys):
    a, b, slow = sides
    assert main(["compare", a, b, *FIGURE]) == 0
    assert capsys.readouterr().out.startswith("SAME OR BETTER: ")
    assert main(["compare", a, slow, *FIGURE]) == 1
    assert capsys.readouterr().out.startswith("WORSE: more than 5 % worse: ttft p50 +20.0 %, ttft p90 +20.0 %")
    assert main(["compare", a, slow, *FIGURE, "--margin", "25"]) == 0
    assert main(["compare", a, slow, *FIGURE, "--paired"]) == 1
    assert main(["compare", f"{a}/0.jsonl", f"{slow}/0.jsonl", *FIGURE]) == 2
    assert main(["compare", f"{a}/0.jsonl", f"{slow}/0.jsonl", *FIGURE, "--min-runs", "1"]) == 1


def test_other_conditions_are_refused_and_named(sides, tmp_path, capsys):
    other = save(tmp_path / "other", 0.1, concurrency=8)
    assert main(["compare", sides[0], other, *FIGURE]) == 3
    captured = capsys.readouterr()
    assert "concurrency (A none, B 8)" in captured.err
    assert "--allow-different concurrency" in captured.err
    assert main(["compare", sides[0], other, *FIGURE, "--allow-different", "concurrency"]) == 0
    assert "differs, accepted: concurrency" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{a}"], "Side B is missing"),
        (["{a}", "/does/not/exist.jsonl"], "cannot be read"),
        (["{a}", "http://127.0.0.1:9"], "One side is a URL"),
        (["http://127.0.0.1:9"], "A and B are the same"),
        (["http://127.0.0.1:9", "--a", "--tier-mix 'flex"], "--a:"),
        (["http://127.0.0.1:9", "--b", "--no-such-option"], "No such option"),
        (["http://127.0.0.1:9", "http://127.0.0.1:10"], "No answer from"),
        (["{a}", "{a}", "--figure", "speed"], "no figure to compare"),
        (["{a}", "{a}", "--allow-different", "weather"], "weather"),
        ([], "Missing argument"),
        (["--url", "http://127.0.0.1:9"], "--url is not for `ultrafast compare`"),
        (["http://127.0.0.1:9", "--b", "--url http://127.0.0.1:10"], "--b cannot name a server"),
        (["{a}", "{a}", "--a", "--tier-mix flex", "--runs", "5"], "--a, --runs"),
        (["{a}", "{a}", "--request-rate", "4"], "--request-rate"),
        (["{a}", "--set-b", "engine.speculation=off"], "is there already"),
        (["{a}", "{a}", "--restart"], "--restart is for servers that the comparison starts"),
        (["--set-b", "engine.speculation"], "--set-b engine.speculation: there is no `=`"),
        (["--set-b", "engine.nonsense=1"], "--set-b engine.nonsense: unknown setting"),
        (["--set-a", "server.port=1"], "--set-a server.port: these servers listen on free local ports"),
        (["--set", "engine.speculation=off"], "A and B have the same settings"),
        (["--set-a", "engine.speculation=auto"], "A and B have the same settings"),
        (["--config-b", "/does/not/exist.toml"], "/does/not/exist.toml"),
        (["--config", "x.toml", "--config-b", "y.toml"], "--config is for both servers"),
        (["--set-b", "model.path_or_name=/nope.gguf"], "/nope.gguf"),
        (["--set", "request_log.path=x", "--set-b", "engine.speculation=off"], "Both servers would write the request log to x"),
    ],
)
def test_every_mistake_is_an_error_and_not_a_verdict(sides, capsys, arguments, words):
    assert main(["compare", *(argument.format(a=sides[0]) for argument in arguments)]) == 3
    captured = capsys.readouterr()
    assert words in captured.err
    assert "hint:" in captured.err


def test_an_empty_directory(sides, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["compare", sides[0], str(tmp_path / "empty")]) == 3
    assert "no .jsonl file" in capsys.readouterr().err


def test_json(sides, capsys):
    assert main(["compare", sides[0], sides[2], *FIGURE, "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert [each["outcome"] for each in document["figures"]] == ["worse", "worse"]
    assert captured.err.startswith("WORSE")


def test_options_of_one_side_are_only_those_written():
    assert _own_options("--a", "--tier-mix flex --max-concurrency 3") == {"tier_mix": "flex", "max_concurrency": 3}
    assert _own_options("--a", "") == {}


def test_configurations_from_files_and_settings(tmp_path, monkeypatch):
    (tmp_path / "a.toml").write_text('[engine]\nspeculation = "off"\n[server]\nport = 9000\napi_key_file = "keys"\n')
    (tmp_path / "keys").write_text("me secret-key-of-a\n")
    monkeypatch.chdir(tmp_path)
    options = {"config_file": None, "config_a": tmp_path / "a.toml", "config_b": None, "restart": False}
    options |= {"assignments": ("engine.num_threads=2",), "assignments_a": (), "assignments_b": ("engine.num_threads=3",)}
    a, b = configurations(options)
    assert (a.settings, b.settings) == ({"engine.num_threads": "2"}, {"engine.num_threads": "3"})
    assert [mismatch.key for mismatch in differing_settings(a, b)] == [
        "server.api_key_file",
        "engine.num_threads",
        "engine.speculation",
    ]
    assert a.command == f"ultrafast serve --config {tmp_path}/a.toml"
    assert b.command == "ultrafast serve --set engine.num_threads=3"
    assert (a.headers, b.headers) == ({"authorization": "Bearer secret-key-of-a"}, {})


def test_every_option_that_changes_conditions_is_known():
    names = {parameter.name for parameter in load_command.params}
    assert set(_MEANT) <= names
