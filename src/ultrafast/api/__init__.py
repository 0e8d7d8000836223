"""The HTTP edge: OpenAI's routes, request parsing, server-sent events, error bodies, health and documents.

Knows HTTP and JSON, and of what lies below only `serving.contract`. Everything runs on the API process's event loop.
"""
