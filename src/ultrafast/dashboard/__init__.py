"""The live page: what the server does now, for people. Read-only; numbers and short ids, never a client's text.

    engine reports -> steps, lanes --+
    samples of calls -> calls -------+--> view (one frame, made only while somebody watches) --> feed --> browser

Fed by the same events as the metrics, so that both say the same.
"""
