"""vLLM on the CPU as a peer, where somebody has installed one: `--vllm-python` and `--vllm-model` name it.

It is not part of any environment of this repository (several GB), and it cannot read GGUF: it gets the same model as a checkpoint
in Hugging Face's format, computed in 32-bit floats, for want of a fast path for anything smaller on many CPUs. So its times are
not comparable with ours as they are; what is compared is how much a loaded server is slower than the same server idle.

Its tiers are numbers: `priority`, smaller is sooner, with `--scheduling-policy priority`.
"""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.load import Body
from benchmarks.options import Options
from benchmarks.processes import RunningServer, StartError, start_process
from benchmarks.prompts import MODEL_NAME

NAME = "vllm"
START_TIMEOUT_S = 240.0
PRIORITIES = {"ultrafast": 0, "priority": 5, "default": 10, "flex": 20}
_MAX_MODEL_TOKENS = 4096
# Prints its ready line at once: vLLM has none, so readiness is asked for over HTTP.
_START = "import os, sys; print('started', flush=True); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def is_there(options: Options) -> bool:
    """Whether a vLLM and a checkpoint were named."""
    return options.vllm_python is not None and options.vllm_model is not None


def absence_note() -> str:
    """For the report of a run without it."""
    return "vLLM was not measured: name an installed one with --vllm-python PATH and its checkpoint with --vllm-model DIR"


def start_vllm(options: Options, log_path: Path, *, num_places: int) -> RunningServer:
    """Start vLLM and wait until it is healthy (about a minute).

    Raises:
        StartError: it was not healthy in time.
    """
    assert options.vllm_python is not None, "ask is_there first"
    port = _free_port()
    arguments = [
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(options.vllm_model),
        f"--served-model-name={MODEL_NAME}",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--max-model-len={_MAX_MODEL_TOKENS}",
        f"--max-num-seqs={num_places}",
        "--dtype=float32",
        "--enforce-eager",
        "--scheduling-policy=priority",
        "--kv-cache-memory-bytes=1G",
    ]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(options.num_threads),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONPATH": "",
    }
    process, _ = start_process([str(options.vllm_python), "-c", _START, *arguments], log_path, START_TIMEOUT_S, environment)
    server = RunningServer(NAME, process, f"http://127.0.0.1:{port}")
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _is_healthy(server.url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            server.stop()
            raise StartError(
                f"vLLM did not become healthy; the end of {log_path}:\n{log_path.read_text(errors='replace')[-2000:]}"
            )
        time.sleep(0.5)
    return server


def for_server(server: RunningServer, body: Body) -> Body:
    """The body as this server wants it: vLLM knows numbers instead of tiers."""
    if server.name != NAME:
        return body
    rest = {key: value for key, value in body.items() if key != "service_tier"}
    return {**rest, "priority": PRIORITIES[body["service_tier"]]}


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
