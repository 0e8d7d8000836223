"""`ultrafast ablate` up to the first server: what it plans, and what it refuses."""

import json

import pytest
from tests.unit.models.gguf_builder import build

from ultrafast.cli.main import main


@pytest.fixture(autouse=True)
def _model(tmp_path, monkeypatch):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(build())
    monkeypatch.setenv("ULTRAFAST_MODEL__PATH_OR_NAME", str(file))


def dry_run(capsys, *arguments):
    code = main(["ablate", "--dry-run", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_dry_run_tells_pipelines_and_numbers(capsys):
    code, out, err = dry_run(capsys, "--quick", "--seed", "5")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert next(iter(lines)) == "naive"
    assert list(lines)[-1] == "together"
    assert len(lines) == 10
    assert "whole" in lines["naive"]
    assert "ultrafast serve --set tokenizer.is_reloaded=true" in lines["naive"]
    assert "streamed" in lines["together"]
    assert "10 pipelines on 9 servers, 5 rounds of (one client, conversations of 3 turns, 3 requests; 4 clients at once" in err
    assert "550 requests in all; seed 5" in err


def test_sizes_can_be_chosen(capsys):
    code, out, err = dry_run(
        capsys, "--workload", "clients", "--clients", "100", "--turns", "1", "--only", "together", "--rounds", "1"
    )
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["naive", "together"]
    assert "(100 clients at once, conversations of 1 turn, 100 requests): 200 requests in all" in err


def test_all_but_one(capsys):
    assert len(dry_run(capsys, "--left-out")[1].splitlines()) == 18


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "8080"], "--port is not for `ultrafast ablate`"),
        (["--only", "magic"], "There is no pipeline magic"),
        (["--max-running", "1"], "scheduler cannot be switched on"),
        (["--set", "engine.enable_prefix_cache=false"], "the ablation switches engine.enable_prefix_cache itself"),
        (["--set", "engine.nonsense=1"], "engine.nonsense"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_what_cannot_be_ablated_is_refused(capsys, arguments, message):
    code, out, err = dry_run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "hint:" in err or "Usage:" in err or "--help" in err
    assert out == ""


def test_a_dry_run_for_programs(capsys):
    code, out, _ = dry_run(capsys, "--quick", "--seed", "5", "--only", "together", "--json")
    assert code == 0
    plan = json.loads(out)
    assert (plan["num_requests"], plan["num_rounds"], plan["num_servers"], plan["seed"]) == (110, 5, 2, 5)
    assert [pipeline["name"] for pipeline in plan["pipelines"]] == ["naive", "together"]
    assert plan["pipelines"][0]["settings"]["tokenizer.is_reloaded"] is True
    assert [pipeline["is_streamed"] for pipeline in plan["pipelines"]] == [False, True]
    assert [(load["name"], load["num_clients"], load["num_requests"]) for load in plan["workloads"]] == [
        ("turns", 1, 3),
        ("clients", 4, 8),
    ]


@pytest.mark.parametrize("model", ["/nope", "no-such-model"])
def test_a_dry_run_with_a_model_that_is_not_there_fails(capsys, model):
    code, out, err = dry_run(capsys, "--model", model)
    assert (code, out) == (1, "")
    assert model in err
    assert err.splitlines()[-1].startswith("hint: ")
