"""A real server process: start, refusal to start, stop, and who is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from tests.servers import child_pids, is_alive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
DEADLINE_S = 180.0
SMALL = {
    "engine__kv_capacity_tokens": 2048,
    "engine__max_num_running": 4,
    "engine__max_step_tokens": 64,
    # Two threads on two busy cores wait for each other at every barrier.
    "engine__num_threads": 1,
}
SMALL_ARGUMENTS = [word for name, value in SMALL.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]
SECRET = "My password is xyzzy."


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def wait_until(condition, what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(0.02)


def spawn(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "ultrafast.cli.main", "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_ready_line_says_what_the_engine_reported(serve, model_path):
    server = serve(model_path, **SMALL, model__served_name="tiny")
    words = server.ready_line.split("  ")
    assert words[0] == f"ready {server.url}"
    assert words[1:4] == ["model tiny", "flash-attention on", "kv f16 2048 tokens"]
    assert words[4] == "1 thread"
    assert get(f"{server.url}/health/live")[0] == 200
    assert get(f"{server.url}/health/ready")[0] == 200
    assert json.loads(get(f"{server.url}/v1/models")[1])["data"][0]["id"] == "tiny"
    assert is_alive(server.engine_pid)


def test_it_listens_while_it_loads(model_path):
    port = free_port()
    process = spawn("--port", str(port), "--model", str(model_path), "--json", *SMALL_ARGUMENTS)
    states = []
    try:
        wait_until(lambda: _try_get(f"http://127.0.0.1:{port}/health/live") == 200, "live")
        states.append(_try_get(f"http://127.0.0.1:{port}/health/ready"))
        ready = json.loads(process.stdout.readline())
        assert ready["url"] == f"http://127.0.0.1:{port}"
        assert ready["flash_attention"] is True
        states.append(_try_get(f"http://127.0.0.1:{port}/health/ready"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    assert states[0] in (200, 503)  # a fast machine may be ready already
    assert states[1] == 200
    assert process.returncode == 0


def _try_get(url: str) -> int | None:
    try:
        return get(url)[0]
    except OSError:
        return None


def test_a_stop_while_loading_leaves_nothing(model_path):
    process = spawn("--port", "0", "--model", str(model_path))
    children: list[int] = []
    wait_until(lambda: children.extend(child_pids(process.pid)) or children or process.poll() is not None, "a child")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert out == "" or out.startswith("ready ")
    wait_until(lambda: not any(map(is_alive, children)), "the child is gone")


def test_a_busy_port_is_refused_before_anything_starts(model_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        process = spawn("--port", str(port), "--model", str(model_path))
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert "loading" not in err
    assert err.splitlines()[-1].startswith("hint: ")


def test_an_engine_that_cannot_load_is_a_clear_error(model_path):
    """The header is checked before; what only the child can find out comes back from it."""
    process = spawn("--port", "0", "--model", str(model_path), "--context", "1000000000")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, "")  # a setting is wrong
    assert "error: a KV pool of 1000000000 tokens needs" in err
    assert err.splitlines()[-1].startswith("hint: ")
    assert "Traceback" not in err


def test_a_wrong_library_is_a_clear_error(model_path, tmp_path):
    library = tmp_path / "libllama.so"
    library.write_text("no library")
    process = spawn("--port", "0", "--model", str(model_path), "--set", f"engine.libllama_path={library}")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, "")
    assert "error: cannot open libllama" in err


def test_more_threads_than_cores_are_refused(model_path):
    process = spawn("--port", "0", "--model", str(model_path), "--threads", "4096")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (2, "")
    assert "engine.num_threads = 4096" in err


def test_the_engine_does_not_outlive_a_killed_server(serve, model_path):
    server = serve(model_path, **SMALL)
    engine_pid = server.engine_pid
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(engine_pid), "the engine child is gone")
    assert server.wait() == -signal.SIGKILL
    server.is_expected_dead = True


def test_a_killed_engine_is_replaced(serve, model_path):
    server = serve(model_path, **SMALL)
    first = server.engine_pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: child_pids(server.pid) not in ([], [first]), "another child")
    wait_until(lambda: get(f"{server.url}/health/ready")[0] == 200, "ready again")
    assert "ultrafast_engine_restarts_total 1.0" in get(f"{server.url}/metrics")[1].decode()


def test_a_stream_in_flight_is_drained(serve, model_path):
    server = serve(
        model_path,
        **SMALL,
        server__drain_timeout_s=600,
        logging__format="json",
        logging__is_content_logged="true",
    )
    body = {
        "model": json.loads(get(f"{server.url}/v1/models")[1])["data"][0]["id"],
        "messages": [{"role": "user", "content": "Count from one to fifty."}],
        "max_tokens": 30,
        "ignore_eos": True,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.readline().startswith(b"data: ")
        server.send_signal(signal.SIGTERM)
        # Nobody answers any more where 30 tokens took no time.
        wait_until(lambda: _try_get(f"{server.url}/health/ready") in (503, None), "drain begins")
        rest = answer.read().decode()
    assert rest.rstrip().endswith("data: [DONE]")
    assert '"finish_reason":"length"' in rest.replace(" ", "")
    assert '"error"' not in rest
    assert server.wait() == 0
    entries = [json.loads(line) for line in server.stderr.splitlines()]
    (prompt,) = [entry for entry in entries if entry["message"] == "prompt"]
    assert prompt["messages"] == body["messages"]


def test_what_does_not_finish_in_time_ends_with_an_error_in_the_stream(serve, model_path):
    server = serve(model_path, **SMALL, server__drain_timeout_s=0)
    body = {
        "model": json.loads(get(f"{server.url}/v1/models")[1])["data"][0]["id"],
        "messages": [{"role": "user", "content": SECRET}],
        "max_tokens": 1900,
        "ignore_eos": True,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.readline().startswith(b"data: ")
        server.send_signal(signal.SIGTERM)
        rest = answer.read().decode()
    assert SECRET not in server.stderr
    events = [line for line in rest.splitlines() if line.startswith("data: ")]
    assert "error" in json.loads(events[-2].removeprefix("data: "))
    assert events[-1] == "data: [DONE]"
    assert server.wait() == 0
