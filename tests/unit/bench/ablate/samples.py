"""Ablations made by hand: every pipeline's times are a factor of the naive one's."""

from ultrafast.bench.ablate.conversations import CLIENTS, TURNS, Workload
from ultrafast.bench.ablate.pipelines import make_pipelines
from ultrafast.bench.ablate.records import Ablation, AblationRun, AblationSpec
from ultrafast.bench.records import Chunk, ErrorClass, Failure, LoopLag, Outcome, RequestRecord, Usage

SIZES = {"num_system": 20, "num_user": 5, "num_output": 4}
ONE = Workload(name=TURNS, num_clients=1, num_conversations=2, num_turns=3, **SIZES)
MANY = Workload(name=CLIENTS, num_clients=4, num_conversations=4, num_turns=2, **SIZES)
FACTORS = {"naive": 1.0, "streaming": 1.0, "prefix-reuse": 0.5, "kv-levels": 0.4, "together": 0.1, "flash-attention": 1.25}


def record(workload, number, turn, e2e_s, ttft_s, *, is_ok=True, num_cached=0, num_prompt=100):
    """One request; the scheduled moment is 0."""
    chunks = [Chunk(round(ttft_s * 1e9), 1), Chunk(round(e2e_s * 1e9), 3)]
    return RequestRecord(
        index=number * workload.num_turns + turn,
        outcome=Outcome.OK if is_ok else Outcome.FAILED,
        failure=None if is_ok else Failure(ErrorClass.CUT, "cut"),
        scheduled_ns=0,
        sent_ns=0,
        session=number,
        turn=turn,
        chunks=chunks,
        end_ns=chunks[-1].stamp_ns,
        usage=Usage(num_prompt, 4, num_cached),
    )


def ablation(*names, num_rounds=6, workloads=(ONE, MANY), noise=0.02, change=lambda run: None, **spec):
    """Pipelines of `FACTORS`; round and conversation change all pipelines' times alike, `noise` each one's by itself."""
    names = names or tuple(FACTORS)
    pipelines = make_pipelines([name for name in names if name != "naive"])
    runs = []
    for position, pipeline in enumerate(pipelines):
        for workload in workloads:
            for number in range(num_rounds):
                requests = []
                for conversation in range(workload.num_conversations):
                    for turn in range(workload.num_turns):
                        wobble = 1 + noise * ((5 * number * number + 3 * position + conversation) % 7 - 3)
                        time_s = (1 + 0.1 * number + 0.2 * conversation + 0.3 * turn) * FACTORS[pipeline.name] * wobble
                        ttft_s = time_s if not pipeline.is_streamed else 0.5 * time_s
                        is_reusing = "prefix-reuse" in pipeline.on and turn > 0
                        requests.append(record(workload, conversation, turn, time_s, ttft_s, num_cached=80 * is_reusing))
                run = AblationRun(pipeline.name, workload.name, number, requests, LoopLag())
                change(run)
                runs.append(run)
    chosen = AblationSpec(pipelines=pipelines, workloads=list(workloads), num_rounds=num_rounds, seed=1, **spec)
    return Ablation(chosen, runs, num_rounds, "2026-01-01T00:00:00+00:00", {"server.model": "m<1>"}, 12.0)
