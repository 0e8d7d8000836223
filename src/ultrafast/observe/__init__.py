"""What is seen from outside: the metric registry, the recorder that turns events into samples, and the logs.

Knows core events only; nobody below calls it.
"""
