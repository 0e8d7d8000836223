"""llama-server out of the `xllamacpp` wheel that Ultrafast runs on: same library, file, threads and context.

Started as a process of its own (`python -m benchmarks.peer_llama_server ...`): prints one JSON line when it listens, lives until
its stdin closes. What is not a parameter here keeps llama-server's default, its 8 GiB prompt cache in RAM included. The wheel's
parameters start from the library's defaults, so the server's own (unified KV for several slots) is set by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.options import Options
from benchmarks.processes import RunningServer, start_process

START_TIMEOUT_S = 60.0


DEFAULT_SLOTS = 4


def start_peer(
    options: Options, log_path: Path, *, num_slots: int = DEFAULT_SLOTS, batch_tokens: int = 0, name: str = ""
) -> RunningServer:
    """Start llama-server and wait until it listens.

    Args:
        num_slots: requests that it serves at once (`-np`).
        batch_tokens: tokens of one step (`-b`); 0 keeps the default, 2048.
        name: in the report.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.peer_llama_server",
        f"--model={options.model_path}",
        f"--threads={options.num_threads}",
        f"--context={options.context_tokens}",
        f"--slots={num_slots}",
        f"--batch={batch_tokens}",
    ]
    process, line = start_process(command, log_path, START_TIMEOUT_S)
    try:
        name = name or ("llama-server" + (f" -b {batch_tokens}" if batch_tokens else ""))
        return RunningServer(name, process, json.loads(line)["url"])
    except BaseException:
        process.kill()
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--batch", type=int, default=0)
    arguments = parser.parse_args()

    import xllamacpp  # type: ignore[import-untyped]  # here only: importing it loads the library, and the parent needs no second copy

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.n_ctx = arguments.context
    params.n_parallel = arguments.slots
    if arguments.batch:
        params.n_batch = arguments.batch
        params.n_ubatch = min(params.n_ubatch, arguments.batch)
    params.kv_unified = True
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    params.ui = False
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # its threads have no orderly end


if __name__ == "__main__":
    main()
