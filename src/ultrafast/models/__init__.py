"""Model files: names, downloads, and the facts in a file's header.

Owns: which file a name or path means, where files lie, and whether a file can be served at all. Knows nothing of
libllama, HTTP or terminals: it never prints, progress goes to a callback. Everything here blocks on disk or network
and belongs on a thread that may wait, before serving starts.
"""
