"""Is flash attention on? libllama has no getter; what it logs while a context is made is all there is.

    asked for      libllama                                             logs
    ENABLED        takes our word, whatever the devices can do          flash_attn = enabled          (says nothing)
    AUTO           builds a graph, looks which device each node is on   Flash Attention enabled | not supported, set to disabled

So AUTO is asked for, and its verdict required. One exception: a quantised V cache turns AUTO into a requirement of libllama's own
(not looked at); creation fails where the model does not have it.
"""

from __future__ import annotations

from collections.abc import Iterable

AUTO = -1
DISABLED = 0
LOG_WORDS = ("flash_attn", "Flash Attention")
"""Lines with one of these matter to `is_on`."""

_VERDICT = "Flash Attention enabled"
_REQUIRED = "flash_attn since it is required for quantized V cache"
_AS_REQUIRED = ("flash_attn", "= enabled")


def is_on(lines: Iterable[str]) -> bool:
    """Return what the log lines of a context that was made with `AUTO` or `DISABLED` say: no verdict means off."""
    seen = list(lines)
    if any(_REQUIRED in line for line in seen):
        return any(all(part in line for part in _AS_REQUIRED) for line in seen)
    return any(_VERDICT in line for line in seen)
