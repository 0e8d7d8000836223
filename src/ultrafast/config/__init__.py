"""Settings: what can be set, where a value came from, and errors that name the line and the nearest key.

Precedence: command line > environment (`ULTRAFAST_SECTION__KEY`) > TOML file > default. Settings are read once, before
anything starts, and never change. Knows nothing of the engine, HTTP or terminals.
"""
