"""Prompt text of a wanted length in tokens, for servers whose tokenizer we do not have. Pure.

Texts are common short English words, which nearly every tokenizer holds as one token each with its space. How far that is true
of the server at hand is measured: the warm-up sends two texts of known numbers of words, and `Calibration` is the line through
the token counts that the server reports. Every measured request is then checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_WORD_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city name team minute idea body back face others level office door health person art war "
    "history party result change morning reason research girl guy moment air teacher force foot boy age policy music market "
    "sense nation plan college interest death experience effect use class control care field development role effort rate "
    "heart drug show leader light voice wife police mind price report decision son view town road drive arm difference value "
    "building action season society tax director position player record paper space ground form event matter center couple "
    "site project activity star table need court oil situation cost industry figure street image phone data picture practice "
    "piece land product doctor wall worker news test movie north love step type blue green white black small large early "
    "young old new good great high long little big strong open clear simple short second third next last free full real best"
)
WORDS = tuple(_WORD_TEXT.split())

NONCE_WORDS = 8
"""Random words at the start of every prompt: more than 60 bits, so no two prompts of any run share a beginning."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """tokens = num_fixed_tokens + tokens_per_word * words; the fixed ones are the chat template's."""

    tokens_per_word: float = 1.0
    num_fixed_tokens: float = 0.0

    @classmethod
    def through(cls, few: tuple[int, int], many: tuple[int, int]) -> Calibration:
        """The line through two measured points (words, tokens); the second has more words."""
        slope = (many[1] - few[1]) / (many[0] - few[0])
        slope = slope if slope > 0.05 else 1.0
        return cls(slope, max(0.0, few[1] - slope * few[0]))

    def num_words(self, num_tokens: int) -> int:
        """Words for a prompt of so many tokens, template included; at least one."""
        return max(1, round((num_tokens - self.num_fixed_tokens) / self.tokens_per_word))


def random_text(num_words: int, *key: int) -> str:
    """`num_words` random words; the same key gives the same text."""
    chosen = np.random.default_rng(list(key)).integers(0, len(WORDS), num_words)
    return " ".join(WORDS[number] for number in chosen)
