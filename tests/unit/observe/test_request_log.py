"""The request log: one line per finished request, rotated, and never in anybody's way."""

import errno
import os
import stat
from types import SimpleNamespace

import msgspec
import pytest

from ultrafast.bench.traces import TraceError, read_trace
from ultrafast.core.errors import ConfigError
from ultrafast.core.events import DropReason, RequestFinished
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.names import PrefixNames
from ultrafast.observe.request_log import files as files_module
from ultrafast.observe.request_log.files import LogFiles
from ultrafast.observe.request_log.key import key_path, make_key, read_key
from ultrafast.observe.request_log.reader import RequestLogError, read_records
from ultrafast.observe.request_log.record import LogHead, LogRecord
from ultrafast.observe.request_log.writer import RequestLog

NAMES = PrefixNames(b"k" * 32)
DEFAULT, FLEX = ServiceTier.DEFAULT, ServiceTier.FLEX


def request(request_id="a", num_prompt=300, **more):
    return Request(request_id, tuple(range(num_prompt)), SamplingParams(max_tokens=9), DEFAULT, 100.0, **more)


def finished(request_id="a", reason=FinishReason.STOP, **changes):
    values = {
        "request_id": request_id,
        "reason": reason,
        "tier": DEFAULT,
        "num_prompt_tokens": 300,
        "num_cached_tokens": 256,
        "num_computed_tokens": 50,
        "num_output_tokens": 7,
        "arrival_s": 100.0,
        "scheduled_s": 100.25,
        "first_token_s": 100.5,
        "finished_s": 102.0,
    }
    return RequestFinished(**(values | changes))


def report(*ended):
    return SimpleNamespace(finished=list(ended))


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_log(max_bytes=1 << 20, num_files=2):
        counts = {True: 0, False: 0}

        def count(is_written, num_lines):
            counts[is_written] += num_lines

        log = RequestLog(LogFiles(tmp_path / "log.jsonl", max_bytes, num_files), NAMES, count, clock=lambda: 101.0)
        made.append(log)
        return log, counts

    yield open_log
    for log in made:
        log.close()


def test_a_line_has_lengths_times_and_names_and_no_text(opened, tmp_path):
    log, counts = opened()
    log.submitted(request(cache_salt="alice"))
    log.on_report(report(finished()))
    log.close()
    (record,) = read_records(tmp_path / "log.jsonl")
    assert record == LogRecord(
        arrival=record.arrival,
        tier="default",
        prompt_tokens=300,
        cached_tokens=256,
        output_tokens=7,
        outcome="stop",
        queue_s=0.25,
        ttft_s=0.5,
        e2e_s=2.0,
        space=NAMES.of_space("alice"),
        prefix=NAMES.of(range(300)),
    )
    assert record.arrival > 1.7e9
    assert counts == {True: 1, False: 0}
    assert stat.S_IMODE((tmp_path / "log.jsonl").stat().st_mode) == 0o600


def test_a_refusal_and_a_downgrade_say_so(opened, tmp_path):
    log, _ = opened()
    log.submitted(request("a"))
    log.submitted(request("b"))
    refusal = {"scheduled_s": None, "first_token_s": None, "num_output_tokens": 0, "drop_reason": DropReason.QUEUE_FULL}
    log.on_report(report(finished("a", FinishReason.REJECT, **refusal), finished("b", tier=FLEX)))
    log.close()
    refused, downgraded = read_records(tmp_path / "log.jsonl")
    assert (refused.outcome, refused.reason, refused.ttft_s, refused.queue_s) == ("reject", "queue_full", None, None)
    assert (downgraded.tier, downgraded.served_tier) == ("default", "flex")


def test_what_is_no_traffic_is_not_logged(opened, tmp_path):
    log, counts = opened()
    log.submitted(request("pinned", is_internal=True))
    log.on_report(report(finished("pinned"), finished("unknown")))
    log.close()
    assert counts == {True: 0, False: 0}
    assert not (tmp_path / "log.jsonl").exists()


def test_a_request_that_shares_nothing_has_no_names(opened, tmp_path):
    log, _ = opened()
    log.submitted(request(use_cache=False))
    log.on_report(report(finished()))
    log.close()
    assert next(read_records(tmp_path / "log.jsonl")).prefix == []


def test_a_full_disk_is_counted_and_said_and_nothing_waits(opened, tmp_path, monkeypatch, caplog):
    log, counts = opened()
    monkeypatch.setattr(files_module.os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    for name in "abc":
        log.submitted(request(name))
    log.on_report(report(finished("a"), finished("b"), finished("c")))
    log.close()
    assert counts == {True: 0, False: 3}
    assert [record.message for record in caplog.records] == ["the request log lost 3 requests: [Errno 28] No space left"]


def test_a_queue_that_is_full_loses_the_newest_and_counts_them(opened, monkeypatch, caplog):
    monkeypatch.setattr("ultrafast.observe.request_log.writer.MAX_QUEUED", 2)
    monkeypatch.setattr(RequestLog, "_run", lambda self: None)
    log, counts = opened()
    for name in "abcd":
        log.submitted(request(name))
    log.on_report(report(*(finished(name) for name in "abcd")))
    assert counts == {True: 0, False: 2}
    assert "more slowly than requests end" in caplog.text
    log._queue.get_nowait()  # room for the word to end


def line(number):
    return msgspec.json.encode({"number": number}) + b"\n"


def test_files_are_rotated_each_with_a_head_and_old_ones_deleted(tmp_path):
    files = LogFiles(tmp_path / "log", 100, 2)
    for number in range(10):
        files.append(line(number))
    files.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    texts = [(tmp_path / name).read_bytes().splitlines() for name in ("log.2", "log.1", "log")]
    assert all(msgspec.json.decode(text[0], type=LogHead) == LogHead() for text in texts)
    kept = [msgspec.json.decode(one)["number"] for text in texts for one in text[1:]]
    assert kept == list(range(kept[0], 10))
    assert all((tmp_path / name).stat().st_size <= 100 for name in ("log", "log.1", "log.2"))


def test_no_file_is_kept_where_none_is_wanted(tmp_path):
    files = LogFiles(tmp_path / "log", 90, 0)
    for number in range(5):
        files.append(line(number))
    files.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_an_existing_file_is_continued(tmp_path):
    for number in range(2):
        files = LogFiles(tmp_path / "log", 1000, 1)
        files.append(line(number))
        files.close()
    assert (tmp_path / "log").read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("torn", [b'{"arrival": 1, "tier"', b"x" * 200_000])
def test_a_line_that_a_crash_tore_is_cut_off_before_the_next_one(tmp_path, torn):
    path = tmp_path / "requests.jsonl"
    LogFiles(path, 1 << 20, 1).append(b"first\n")
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    LogFiles(path, 1 << 20, 1).append(b"second\n")
    assert path.read_bytes() == whole + b"second\n"
    path.write_bytes(torn)
    LogFiles(path, 1 << 20, 1).append(b"third\n")
    assert path.read_bytes().endswith(b"}\nthird\n"), "not even a head was left: it is written anew"


def test_half_a_line_is_cut_off_again(tmp_path, monkeypatch):
    files = LogFiles(tmp_path / "log", 1000, 1)
    files.append(line(1))
    whole, write = (tmp_path / "log").read_bytes(), os.write
    calls = []

    def full_after_three_bytes(descriptor, data):
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left")
        return write(descriptor, bytes(data[:3]))

    monkeypatch.setattr(files_module.os, "write", full_after_three_bytes)
    with pytest.raises(OSError, match="No space"):
        files.append(line(2))
    monkeypatch.undo()
    assert (tmp_path / "log").read_bytes() == whole
    files.append(line(3))
    assert (tmp_path / "log").read_bytes() == whole + line(3)
    files.close()


def test_the_key_is_made_once_for_its_owner(tmp_path):
    path = key_path(tmp_path / "folder" / "log.jsonl")
    key = make_key(path)
    assert path.name == "log.jsonl.key"
    assert (len(key), make_key(path), read_key(path)) == (32, key, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_that_is_none_is_refused(tmp_path):
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(path)
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="is no key"):
        make_key(path)
    with pytest.raises(ConfigError, match="cannot be written"):
        make_key(path / "below a file")


def write_log(path, *records, head=None):
    lines = [head or LogHead(), *records]
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    return path


def record(arrival, **more):
    values = {"arrival": arrival, "tier": "flex", "prompt_tokens": 300, "output_tokens": 7, "outcome": "stop", "e2e_s": 1.0}
    return LogRecord(**(values | more))


def test_a_log_is_a_trace(tmp_path):
    path = write_log(
        tmp_path / "log",
        record(1000.5, prefix=["a", "b"]),
        record(1000.0, prefix=["a"], space="s", tier="ultrafast"),
        record(1003.0, output_tokens=0, outcome="reject", prefix=["a", "c"]),
    )
    first, second, third = read_trace(path)
    assert [entry.due_s for entry in (first, second, third)] == [0.0, 0.5, 3.0]
    assert (first.tier, first.num_prompt_tokens, first.num_output_tokens, first.num_block_tokens) == ("ultrafast", 300, 7, 128)
    assert third.num_output_tokens == 7, "what it would have said is not known: as much as the others"
    assert second.blocks[0] == third.blocks[0] != first.blocks[0], "other spaces share nothing"
    assert second.blocks[1] != third.blocks[1]


def test_a_line_that_is_broken_is_named_and_one_without_end_is_left_out(tmp_path):
    path = write_log(tmp_path / "log", record(1.0))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"arrival": 2')
    assert len(list(read_records(path))) == 1
    path.write_bytes(whole + b'{"arrival": "x"}\n')
    with pytest.raises(RequestLogError, match="line 3"):
        list(read_records(path))
    with pytest.raises(TraceError, match="line 3"):
        read_trace(path)


def test_another_version_is_refused(tmp_path):
    with pytest.raises(RequestLogError, match="version 2"):
        list(read_records(write_log(tmp_path / "log", head=LogHead(version=2))))
