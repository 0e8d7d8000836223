"""Records made from event streams with invented stamps: the definitions can be checked without a clock or a socket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ultrafast.bench.client import StreamReader
from ultrafast.bench.records import Outcome, RequestRecord, Run, RunRecord, Scenario, Window

MS = 1_000_000


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


ROLE = delta(role="assistant", content="")
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def usage(num_output: int, num_prompt: int = 10, num_cached: int = 0) -> dict[str, Any]:
    counts = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
    return {"choices": [], "usage": counts}


def sse(*events: dict[str, Any] | str) -> bytes:
    return b"".join(b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n" for event in events)


def record_of(
    reads: Sequence[tuple[float, bytes]],
    *,
    scheduled_ms: float = 0,
    sent_ms: float = 0,
    status: int = 200,
    headers: dict[str, str] | None = None,
    is_broken: bool = False,
) -> RequestRecord:
    """What the client would write down if each piece came out of one read at its millisecond."""
    record = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=int(scheduled_ms * MS), sent_ns=int(sent_ms * MS))
    reader = StreamReader(record, origin_ns=0)
    head = {"content-type": "text/event-stream"} | (headers or {})
    first_ms = reads[0][0] if reads else sent_ms
    reader.on_head(status, head, int(first_ms * MS))
    for at_ms, piece in reads:
        reader.on_body(piece, int(at_ms * MS))
    last_ns = int((reads[-1][0] if reads else sent_ms) * MS)
    if is_broken:
        reader.on_broken("the server closed the connection", last_ns)
    else:
        reader.on_end(last_ns)
    return record


def truth_reads(num_tokens: int, *, per_chunk: int = 1, kind: str = "content", has_usage: bool = True, is_counted: bool = False):
    """Role at 50 ms, first chunk at 200 ms, then gaps of 10 and 30 ms in turn; finish, usage and [DONE] 5 ms after the last."""
    reads, at_ms, gaps = [(50.0, sse(ROLE))], 200.0, (10.0, 30.0)
    for number in range(0, num_tokens, per_chunk):
        event = delta(**{kind: " word" * per_chunk})
        if is_counted:
            event["usage"] = {"prompt_tokens": 10, "completion_tokens": number + per_chunk}
        reads.append((at_ms, sse(event)))
        at_ms += gaps[number // per_chunk % 2]
    end = [FINISH, usage(num_tokens), "[DONE]"] if has_usage else [FINISH, "[DONE]"]
    reads.append((reads[-1][0] + 5, sse(*end)))
    return reads


def run_of(requests: list[RequestRecord], *, end_ms: float = 1000.0, **scenario: Any) -> Run:
    conditions = Scenario(name="test", url="http://x", model="m", endpoint="/v1/chat/completions", arrival="poisson", **scenario)
    for index, request in enumerate(requests):
        request.index = index
    record = RunRecord(
        run_id="r",
        started_at="2026-01-01T00:00:00+00:00",
        client_version="0",
        scenario=conditions,
        window=Window(0, int(end_ms * MS)),
    )
    return Run(record, requests)
