"""What a token costs on its way from the engine thread to the reader of its stream: child -> socket -> client -> stream.

The child runs the real loop and sockets around an engine that only sleeps, so everything measured here is our own cost.
Run: python -m benchmarks.engine_client [--step-ms 2] [--steps 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

import msgspec
import uvloop
from tests.component.engine.scripted_child import Script

from ultrafast.core.events import TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.engine.client import EngineClient
from ultrafast.engine.codec import encode_frame, engine_side_reader
from ultrafast.engine.messages import StepReport, Submit
from ultrafast.engine.options import EngineOptions

CHILD = Path(__file__).parent.parent / "tests" / "component" / "engine" / "scripted_child.py"


class Lag:
    """From the end of a step in the child to the moment a reader holds its token."""

    def __init__(self) -> None:
        self.samples_s: list[float] = []
        self._at_s = 0.0

    def on_report(self, report: StepReport) -> None:
        if report.stats is not None:
            self._at_s = report.stats.at_s

    def on_batch(self) -> None:
        self.samples_s.append(time.monotonic() - self._at_s)


async def measure(num_streams: int, num_steps: int, step_s: float) -> None:
    os.environ["SCRIPTED_CHILD"] = msgspec.json.encode(Script(step_s=step_s)).decode()
    client = EngineClient(EngineOptions("model.gguf"), command=(sys.executable, str(CHILD)))
    lag = Lag()
    client.add_listener(lag.on_report)
    await client.start()

    async def read(name: str) -> int:
        num_tokens = 0
        async for batch in client.submit(Request(name, (1, 2, 3), SamplingParams(max_tokens=num_steps))):
            lag.on_batch()
            num_tokens += sum(isinstance(event, TokenProduced) for event in batch)
        return num_tokens

    begin_cpu_s = time.process_time()
    num_tokens = sum(await asyncio.gather(*[read(str(index)) for index in range(num_streams)]))
    cpu_us = (time.process_time() - begin_cpu_s) / num_tokens * 1e6
    await client.close()
    lags_us = sorted(sample * 1e6 for sample in lag.samples_s)
    p50, p99 = statistics.median(lags_us), lags_us[int(len(lags_us) * 0.99)]
    print(f"{num_streams:3} streams: lag P50 {p50:6.0f} us, P99 {p99:6.0f} us; {cpu_us:5.1f} us of CPU per token here")


def measure_codec() -> None:
    submit = Submit(Request("r", tuple(range(8192)), SamplingParams()))
    begin_s = time.perf_counter()
    for _ in range(100):
        frame = encode_frame(submit)
    encoded_s = time.perf_counter()
    reader = engine_side_reader()
    for _ in range(100):
        reader.feed(bytes(frame))
    decoded_s = time.perf_counter()
    print(
        f"8192-token prompt: {len(frame)} bytes, encode {(encoded_s - begin_s) * 1e4:.0f} us, "
        f"decode {(decoded_s - encoded_s) * 1e4:.0f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    measure_codec()
    for num_streams in (1, 8, 32):
        uvloop.run(measure(num_streams, arguments.steps, arguments.step_ms / 1000))


if __name__ == "__main__":
    main()
