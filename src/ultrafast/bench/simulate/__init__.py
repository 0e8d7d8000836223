"""`ultrafast simulate`: recorded or synthetic traffic through the real scheduler, on engines that only take time.

    load.py        requests: from a trace, or drawn from classes
    engine_spec.py what one engine is: limits, tiers, cost of a step
    passes.py      a forward pass that computes nothing and checks what can be checked cheaply
    replica.py     one engine: scheduler and passes, turn by turn as the engine loop does it
    routing.py     which replica an arrival goes to
    fleet.py       the event loop over all replicas
    tally.py       what became of the requests
    outcome.py     tallies as figures; report.py shows them
    whatif.py      variants of one setup, each simulated with the same traffic

Deterministic: the same traffic, setup and seed give the same figures to the last digit. No clock is read.
"""
