"""Benchmarks: each module with a `BENCHMARK` measures one claim; `run.py` lists and runs them."""
