"""Plans made on paper from what was recorded; nothing here sends a request.

warmup/     what to warm at the start, from a request log
"""
