"""What fits into the model's context and vocabulary. Nothing is ever cut to fit: what does not is refused, with both counts."""

from __future__ import annotations

from collections.abc import Sequence

from ultrafast.core.errors import ContextLengthError, InvalidRequestError
from ultrafast.core.tiers import ServiceTier, TierPolicy
from ultrafast.serving.contract import GenerationOptions
from ultrafast.serving.ports import Tokenizer
from ultrafast.serving.sampling import SamplingDefaults


def longest_piece_bytes(tokenizer: Tokenizer) -> int:
    """Return the most bytes of text that one token can stand for."""
    pieces = tokenizer.pieces
    return max(len(piece) or len(tokenizer.special_text(token).encode()) for token, piece in enumerate(pieces))


def check_text_fits(text: str, piece_bytes: int, max_request_tokens: int, param: str) -> None:
    """Refuse text that cannot fit whatever its tokens are: some tokenizers need minutes for megabytes of one character.

    Raises:
        ContextLengthError: even if each token stood for `piece_bytes` of it, the text would not fit.
    """
    check_length_fits(len(text.encode("utf-8", "replace")) // piece_bytes, max_request_tokens, param)


def check_length_fits(num_tokens: int, max_request_tokens: int, param: str) -> None:
    """Refuse a prompt of at least so many tokens before any work on them.

    Raises:
        ContextLengthError: it does not fit with even one token of output.
    """
    if num_tokens >= max_request_tokens:
        raise ContextLengthError(
            f"this model's maximum context length is {max_request_tokens} tokens, but the prompt has at least {num_tokens}",
            param=param,
            hint="shorten the prompt",
        )


def output_limit(
    options: GenerationOptions, defaults: SamplingDefaults, num_prompt_tokens: int, max_request_tokens: int, param: str
) -> int:
    """Return the most output tokens that this request may produce. `param`: the field that the prompt came in.

    Raises:
        ContextLengthError: prompt and requested output do not fit.
        InvalidRequestError: no prompt, or `min_tokens` is above the limit.
    """
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt is empty: it has no tokens", param=param)
    room = max_request_tokens - num_prompt_tokens
    wanted = options.max_tokens
    if room < 1 or (wanted is not None and wanted > room):
        asked = "" if wanted is None else f" ({num_prompt_tokens} in the prompt, {wanted} in the output)"
        raise ContextLengthError(
            f"this model's maximum context length is {max_request_tokens} tokens, "
            f"but {num_prompt_tokens + (wanted or 0)} tokens were requested{asked}",
            param=param if wanted is None or room < 1 else "max_tokens",
            hint="shorten the prompt or lower max_tokens",
        )
    limit = wanted if wanted is not None else min(room, defaults.max_tokens or room)
    if options.min_tokens > limit:
        raise InvalidRequestError(f"min_tokens {options.min_tokens} is above the output limit of {limit}", param="min_tokens")
    return limit


def check_sequences_fit(num_sequences: int, num_tokens: int, num_places: int, tier: ServiceTier, policy: TierPolicy) -> None:
    """Refuse a call whose sequences can never be in the engine together, however idle it is; see `sched.gate`.

    Args:
        num_sequences: prompts times choices.
        num_tokens: of all their prompts together.
        num_places: sequences that may run at once.
        tier: the tier that serves; a call of several sequences is not moved to another one.
        policy: its bounds.

    Raises:
        InvalidRequestError: more than the places and the tier's queue hold.
    """
    most = num_places + policy.max_num_waiting
    hint = "ask for fewer choices (n) or prompts per call; several calls can come one after the other"
    if num_sequences > 1 and num_sequences > most:
        raise InvalidRequestError(
            f"this call asks for {num_sequences} sequences at once (n times prompts), and this server takes at most {most}: "
            f"{num_places} places (engine.max_num_running), {policy.max_num_waiting} in the queue (tiers.{tier}.max_num_waiting)",
            param="n",
            hint=hint,
        )
    if num_sequences > num_places and 0 < policy.max_waiting_tokens < num_tokens:
        raise InvalidRequestError(
            f"the {num_sequences} sequences of this call have {num_tokens} prompt tokens together, and have to wait for "
            f"{num_places} places; at most {policy.max_waiting_tokens} may wait (tiers.{tier}.max_waiting_tokens)",
            param="n",
            hint=hint,
        )


def check_token_ids(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Refuse ids that the model does not have.

    Raises:
        InvalidRequestError: an id is outside [0, vocab_size).
    """
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab_size):
        return
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(f"{param}: token id {token} is not in [0, {vocab_size})", param=param)
