"""A server logs its requests; the log becomes a trace and a warm-up plan; the next server starts with the prefix in memory."""

import json
import signal

import pytest
from tests.integration.test_kv_restart import MESSAGES, SMALL, all_on_disk, ask, levels, num_not_cached, wait_until

from ultrafast.cli.main import main
from ultrafast.observe.request_log.reader import read_records

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
QUESTIONS = ("How many ships on day 3?", "How many whales on day 5?", "Which day had the most ships?")


def test_from_the_log_to_a_warm_start(serve, model_path, tmp_path, capsys):
    log, plan = tmp_path / "requests.jsonl", tmp_path / "plan.json"
    settings = {**SMALL, "engine__kv_disk_path": str(tmp_path / "kv")}
    server = serve(model_path, **settings, request_log__path=str(log))
    for question in QUESTIONS:
        ask(server, [MESSAGES[0], {"role": "user", "content": question}])
    wait_until(lambda: all_on_disk(server))
    wait_until(lambda: log.exists() and len(list(read_records(log))) == len(QUESTIONS))
    assert main(["simulate", "--fit", server.url, "--trace", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (tier,) = told["outcomes"][0]["tiers"]
    assert (tier["num_requests"], tier["num_answered"]) == (3, 3)
    assert told["cost"]["token_s"] > 0
    assert tier["cached_share"] > 0.3
    server.send_signal(signal.SIGTERM)
    assert server.wait() == 0

    records = list(read_records(log))
    assert all(record.outcome in ("stop", "length") and record.ttft_s for record in records)
    assert records[0].prefix[0] == records[1].prefix[0] == records[2].prefix[0]
    assert "ships" not in log.read_text()

    assert main(["warmup", "--from-log", str(log), "--out", str(plan)]) == 0
    warm = serve(model_path, **settings, engine__warmup_plan=str(plan))
    wait_until(lambda: levels(warm)["host"]["num_tokens"] >= 128)
    assert "1 of 1 prefixes are on disk" in warm.stderr
    answer = ask(warm, [MESSAGES[0], {"role": "user", "content": "How many ships on day 7?"}])
    assert num_not_cached(answer) < 0.6 * answer["usage"]["prompt_tokens"]


def test_a_plan_that_is_none_stops_the_start_with_a_hint(tmp_path, model_path, capsys):
    (tmp_path / "plan").write_text("{}")
    assert main(["serve", "--model", str(model_path), "--port", "0", "--set", f"engine.warmup_plan={tmp_path / 'plan'}"]) == 2
    told = capsys.readouterr().err
    assert "warm-up plan" in told
    assert "hint: Make one with" in told
