"""Statistics of measurements: percentiles, intervals, gaps, sequential tests, comparisons. Pure; numpy only.

These modules know nothing of HTTP, requests or reports: they take numbers. Times may be in any unit, the same throughout.
"""
