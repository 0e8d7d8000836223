"""Chat requests of a wanted length whose prompts share nothing, unless they are meant to.

Words are frequent English ones: about one token each in the vocabularies of today. What a prompt really cost is what the server
reports in `usage`. The system message comes first in a rendered prompt, so a unique one leaves nothing for a warm cache.
"""

from __future__ import annotations

import random
from typing import Any

MODEL_NAME = "bench"  # ours is started with this name; llama-server takes any
_FREQUENT_WORDS = """
the water city light history music garden winter summer river mountain paper letter number story machine window
table kitchen market street bridge station engine doctor teacher student family mother father brother sister
morning evening island forest animal horse bird fish stone metal glass silver golden green yellow purple simple
little large small heavy early late quiet strong young ancient modern public private local national world ocean
sky cloud rain snow wind fire earth road train ship house school church office factory library museum theatre
science nature language culture society business money price trade travel language health energy power time
people children friend neighbour king queen soldier farmer writer artist player leader member worker driver
"""
_WORDS = _FREQUENT_WORDS.split()
_OVERHEAD_TOKENS = 14  # what ChatML puts around a system and a user message


def words(rng: random.Random, count: int) -> str:
    """Random words; eight or more of them never come twice in practice."""
    return " ".join(rng.choices(_WORDS, k=count))


def chat_body(system: str, user: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A streaming greedy chat request that produces exactly `max_tokens` tokens on servers that know `ignore_eos`.

    llama-server forbids end tokens then, ours (as vLLM) lets them pass without text, unless `min_tokens` forbids them: so the
    servers produce the same.
    """
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "min_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }


def unique_chat(rng: random.Random, num_prompt_tokens: int, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A request of about `num_prompt_tokens` tokens that has no prefix in common with any other."""
    count = max(16, num_prompt_tokens - _OVERHEAD_TOKENS)
    return chat_body(words(rng, count // 2), "Tell a story about: " + words(rng, count - count // 2 - 5), max_tokens, **fields)


def shared_prefix_chats(
    rng: random.Random, num_requests: int, prefix_tokens: int, suffix_tokens: int, max_tokens: int
) -> list[dict[str, Any]]:
    """Requests with one system message of about `prefix_tokens` tokens and different user messages."""
    prefix = words(rng, prefix_tokens)
    return [chat_body(prefix, words(rng, suffix_tokens), max_tokens) for _ in range(num_requests)]
