"""The vocabulary that every layer shares.

Owns: what a request, a tier, a step and an event are. Knows nothing of HTTP, libllama, files or threads.
Standard library only; every value here is immutable and may cross threads and processes.
"""
