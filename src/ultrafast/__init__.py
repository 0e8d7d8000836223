"""Ultrafast: an LLM server that decides every step by its latency target."""

__version__ = "0.1.0"
