"""Names of KV by content: a chain of digests over (model key, namespace, tokens).

    root = H(model key, namespace)      d1 = H(root, tokens [0, 128))      d2 = H(d1, tokens [128, 256))      ...

A digest therefore stands for *all* tokens before it, for the model and the settings that computed their KV, and for the tenant
that may read it. 128 bits of BLAKE2b: who cannot choose both sides of a collision cannot read another's KV by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def root_digest(model_key: bytes, namespace: str) -> bytes:
    """Return the digest before the first token."""
    return blake2b(model_key + namespace.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"kv-root").digest()


def next_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the digest after `tokens`, which follow what `parent` stands for."""
    return blake2b(parent + array("i", tokens).tobytes(), digest_size=DIGEST_BYTES, person=b"kv-run").digest()
