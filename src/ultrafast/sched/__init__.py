"""Decisions: who runs, in what order, how many tokens of whom, who gives way. Pure: (state, now) -> plan.

    scheduler.py   the face: add, abort, plan, complete
    planner.py     one plan: admission, decodes, prefill chunks, preemption
    outcome.py     one result: tokens, ends, faults
    paired.py      two schedulers in turn: the shared pool, and deterministic requests alone in theirs

Policies, one small file each: ordering.py (who first, who gives way), admission.py (who may start), chunks.py (who gets how
many prefill tokens), cost.py (how long a step takes), sharing.py (who waits for whose prefix), shares.py (what each tier gets at
least), reservation.py (what is held back for those who are likely to come), departing.py (how fast KV leaves the device),
speculation/ (which guessed tokens a step checks).

State: limits.py, live.py (one request), waiting.py (those without a sequence), faults.py (what failed), state.py (all of it).
"""
