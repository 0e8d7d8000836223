"""What the ablation needs of a server and of answers that are not streamed, over real sockets and processes."""

import asyncio
import json
import os
import time

import pytest
from tests.component.bench.truth_server import running

from ultrafast.bench.client import BenchClient
from ultrafast.bench.figures import figures_of
from ultrafast.bench.http1 import Address, ConnectionPool
from ultrafast.bench.own_server import ServerStartError, start_server
from ultrafast.bench.records import ErrorClass, Outcome, RequestRecord
from ultrafast.bench.whole_answer import WholeAnswerReader

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
OK = json.dumps({"choices": [{"message": {"content": "hello"}, "finish_reason": "length"}], "usage": USAGE}).encode()


def read(body, status=200):
    record = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=0, sent_ns=0)
    reader = WholeAnswerReader(record, 0)
    reader.on_head(status, {"content-type": "application/json"}, 5)
    reader.on_body(body[:20], 6)
    reader.on_body(body[20:], 7)
    reader.on_end(8)
    return record, reader.text


def test_first_and_last_text_come_with_the_end_of_the_body():
    record, text = read(OK)
    assert (record.outcome, text, record.finish_reason) == (Outcome.OK, "hello", "length")
    figures = figures_of(record)
    assert figures.ttft_s == figures.e2e_s == 8e-9
    assert (record.usage.num_prompt_tokens, record.usage.num_output_tokens, record.usage.num_cached_tokens) == (9, 3, 4)


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"not json at all, really not", 200, ErrorClass.PROTOCOL),
        (b'{"choices": [], "usage": {"prompt_tokens": 1}}', 200, ErrorClass.EMPTY),
        (b'{"choices": [{"message": {"content": null}}]}', 200, ErrorClass.EMPTY),
        (b'{"error": {"message": "no room", "code": "full"}}', 429, ErrorClass.OVERLOADED),
    ],
)
def test_what_is_no_answer(body, status, kind):
    record, text = read(body, status)
    assert (record.outcome, record.failure.kind, text) == (Outcome.FAILED, kind, "")


async def test_the_client_reads_whole_answers():
    async with running(scale=0.0) as server:
        pool = ConnectionPool(Address.parse(server.url), time.perf_counter_ns)
        client = BenchClient(pool, "/v1/chat/completions", time.perf_counter_ns(), reader_class=WholeAnswerReader)
        record = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=0)
        assert await client.ask(record, b'{"model": "truth-plain-json"}') == "hello"
        pool.close()
    assert record.is_ok
    assert len(record.chunks) == 1


async def test_a_server_that_does_not_start_says_why_and_leaves_nothing(tmp_path):
    missing = tmp_path / "none.gguf"
    with pytest.raises(ServerStartError, match=r"there is no such file") as caught:
        await start_server(None, {"model.path_or_name": str(missing)}, os.environ)
    assert f"model.path_or_name = {missing}" in caught.value.message
    assert len(asyncio.all_tasks()) == 1
