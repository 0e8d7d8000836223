"""The embedded engine: a supervised child process with one engine thread (scheduler, KV bookkeeping, libllama).

`client` is what the API process uses; `child` is the other process; `loop` is its engine thread; `executor` is the seam
between decisions and a model: `llama.executor` runs libllama, `fake` runs on nothing, for tests and simulation.
"""
