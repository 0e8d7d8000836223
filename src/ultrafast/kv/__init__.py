"""Bookkeeping of KV: which sequence holds which tokens, what is shared, what is free, what to evict.

Pure: it never sees bytes, time or threads. It takes `now`, returns facts, and writes the operations that make the engine follow
(`core.step.KvOp`). One thread owns it, the same one that owns the scheduler.

    tree.py      the prefix tree: tokens -> cells, shared cells counted once
    ledger.py    sequence ids, cached leaves, evictions and the operations that go with them
    departure.py copies of sequences that will have to leave, run by run
    eviction.py  the policy: which cached leaf goes first
"""
