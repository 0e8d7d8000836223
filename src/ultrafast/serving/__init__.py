"""Use cases: from a call to a stream of text.

Owns: chat templates, prompts, text out of tokens, stop strings, tool calls, structured output, limits. Knows nothing of HTTP,
JSON bodies or libllama. Runs on the event loop; long prompts are prepared on a small thread pool.
"""
