"""What the contract suite asks of an executor fixture, and a driver that plans one request after another."""

from __future__ import annotations

from collections.abc import Iterable

from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import KvOp, SampledToken, SequenceWork, StepPlan, StepResult, StepStatus, TrimSequence
from ultrafast.engine.executor import Executor

CAPACITY_TOKENS = 512
"""Every executor under contract has exactly this many cells (a multiple of libllama's padding of 256) ..."""
NUM_SEQUENCES = 8
MAX_STEP_TOKENS = 128
COUNT = 6
"""Tokens of the texts that are compared."""

PROMPT = tuple(range(100, 150))
"""Valid token ids of any real vocabulary."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def request(name: str, prompt: Iterable[int] = PROMPT, params: SamplingParams = GREEDY, output: tuple[int, ...] = ()) -> Request:
    return Request(name, tuple(prompt), params, output_tokens=output)


class Driver:
    """Runs plans on an executor and keeps count of steps."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._step = 0
        self._begun: list[str] = []

    def begin(self, *requests: Request) -> None:
        for one in requests:
            self._begun.append(one.request_id)
            self.executor.begin_request(one)

    def clear(self) -> None:
        """Leave the executor as it was found: no request, no cell in use."""
        for request_id in self._begun:
            self.executor.end_request(request_id)
        self.apply(*[TrimSequence(seq_id, 0) for seq_id in range(NUM_SEQUENCES)])

    def run(self, *work: SequenceWork) -> StepResult:
        self._step += 1
        return self.executor.run(StepPlan(self._step, (), work))

    def draw(self, *work: SequenceWork) -> dict[str, SampledToken]:
        """Run a step that must succeed; its draws by request id."""
        result = self.run(*work)
        assert result.status is StepStatus.OK
        assert not result.failed
        return {drawn.request_id: drawn for drawn in result.sampled}

    def prefill(self, one: Request, seq_id: int, start: int = 0, chunk: int = MAX_STEP_TOKENS) -> SampledToken:
        """Compute tokens [start, end) of prompt and earlier output in chunks; returns the draw after the last one."""
        tokens = (*one.prompt_tokens, *one.output_tokens)
        drawn: dict[str, SampledToken] = {}
        while start < len(tokens):
            end = min(start + chunk, len(tokens))
            is_last = end == len(tokens)
            work = SequenceWork(one.request_id, seq_id, start, tokens[start:end], is_last, len(one.output_tokens))
            drawn = self.draw(work)
            assert (one.request_id in drawn) == is_last
            start = end
        return drawn[one.request_id]

    def decode(self, one: Request, seq_id: int, first: SampledToken, count: int) -> list[int]:
        """The first `count` tokens of the output, given the draw that ended the prefill."""
        output = [*one.output_tokens, first.token]
        while len(output) < count:
            position = one.num_prompt_tokens + len(output) - 1
            work = SequenceWork(one.request_id, seq_id, position, (output[-1],), True, len(output))
            output.append(self.draw(work)[one.request_id].token)
        return output

    def generate(self, one: Request, seq_id: int, count: int, *, start: int = 0, chunk: int = MAX_STEP_TOKENS) -> list[int]:
        return self.decode(one, seq_id, self.prefill(one, seq_id, start, chunk), count)

    def apply(self, *ops: KvOp) -> tuple[str, ...]:
        return self.executor.apply_kv(ops)
