"""What idle cells cost: measured in the warm-up, because no request's own steps tell it apart from the rest.

    one row, pool empty        |r|                                     t0
    one row, pool half full    |r|- masked -|- masked -|- masked -|    t1        (t1 - t0) / cells = seconds per row and cell

The cells are copies of one short sequence, so filling the pool costs no computation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ultrafast.core.step import SequenceWork, TrimSequence

if TYPE_CHECKING:
    from ultrafast.engine.llama.executor import LlamaExecutor

_COPY_TOKENS = 32
_MAX_CELLS = 4096
"""Enough to stand out of the noise of single steps, where a thousand would not."""
_NUM_STEPS = 5
_POOL_SHARE = 2


RunStep = Callable[[SequenceWork], float]
"""Runs a step of this work alone, which stays in the pool, and returns its duration, seconds."""


def measure_idle_cell_s(executor: LlamaExecutor, request_id: str, run_step: RunStep) -> float:
    """Seconds that each cell in use adds to each row of a step that does not read it.

    Args:
        executor: with an empty pool, which it has again afterwards.
        request_id: of a request that was begun.
        run_step: the warm-up's own way of running a step on this executor.

    Returns:
        0 where it cannot be measured: sequences that cannot be cut, a pool or a step that is too small.
    """

    def row_s() -> float:
        times_s = []
        for _ in range(_NUM_STEPS):
            times_s.append(run_step(SequenceWork(request_id, 0, 0, (0,), samples=True)))
            executor.apply_kv([TrimSequence(0, 0)])
        return min(times_s)

    sizes = executor.model.sizes
    num_copies = min(_MAX_CELLS, sizes.kv_capacity_tokens // _POOL_SHARE) // _COPY_TOKENS
    copies = range(1, min(num_copies + 1, sizes.num_sequences))
    if not executor.can_trim or sizes.step_tokens < _COPY_TOKENS or len(copies) < 2:
        return 0.0
    empty_s = row_s()
    run_step(SequenceWork(request_id, copies[0], 0, (0,) * _COPY_TOKENS, samples=False))
    data = executor.save_kv(copies[0], 0, _COPY_TOKENS)
    are_there = data is not None and all(executor.load_kv(seq_id, 0, _COPY_TOKENS, data) for seq_id in copies[1:])
    full_s = row_s()
    executor.apply_kv([TrimSequence(seq_id, 0) for seq_id in copies])
    return max(0.0, full_s - empty_s) / (len(copies) * _COPY_TOKENS) if are_there else 0.0
