"""Decisions: who runs, in what order, how many tokens of whom, who gives way. Pure: (state, now) -> plan.

    scheduler.py   the face: add, abort, plan, complete
    planner.py     one plan: admission, decodes, prefill chunks, preemption
    outcome.py     one result: tokens, ends, faults

    policies, one small file each: ordering.py (who first), admission.py (who may start), chunks.py (who gets how many
    prefill tokens), cost.py (how long a step takes), sharing.py (who waits for whose prefix)
    state: limits.py, live.py (one request), waiting.py (those without a sequence), state.py (all of it), faults.py
"""
