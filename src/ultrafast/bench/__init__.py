"""Measures any OpenAI-compatible server: workload, client, definitions, statistics, reports, verdicts.

Owns what a figure means (TTFT, gap, TPOT, jitter, goodput) and how it is proved. It knows nothing of our own server beyond
the extensions that a client can read off an answer. It runs in the process of a command, never in the server.
"""
