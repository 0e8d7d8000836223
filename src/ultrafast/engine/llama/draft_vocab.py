"""Whether a file can be a draft model, and whether it speaks the same tokens as the model that it guesses for.

Its guesses are token ids and nothing else. The server can do without it, so whatever is wrong with it is a wrong setting.
"""

from __future__ import annotations

from ultrafast.core.errors import ConfigError, ModelFileError
from ultrafast.engine.llama.vocab import Vocab

_HINT = (
    "Use a smaller model of the same family (the same tokenizer), or leave engine.draft_model_path out: "
    "guesses from repeated text need no second model."
)


def no_draft_model(error: ModelFileError) -> ConfigError:
    """The error of a file that cannot be loaded as the one of the setting that names it."""
    return ConfigError(f"The draft model: {error.message}", code=error.code, param="engine.draft_model_path", hint=error.hint)


def check_draft_vocabulary(target: Vocab, draft: Vocab, draft_path: str) -> None:
    """Compare two vocabularies: every token's bytes, which ones are control tokens, which end a text, and BOS, EOS and EOT.

    Raises:
        ConfigError: they differ; the message says where first.
    """
    difference = _difference(target, draft)
    if difference:
        raise ConfigError(
            f"The draft model {draft_path} has another vocabulary than the model: {difference}.",
            code="draft_vocabulary",
            param="engine.draft_model_path",
            hint=_HINT,
        )


def _difference(target: Vocab, draft: Vocab) -> str | None:
    if target.size != draft.size:
        return f"{draft.size} tokens instead of {target.size}"
    for token, (mine, other) in enumerate(zip(target.grammar_pieces(), draft.grammar_pieces(), strict=True)):
        if mine != other:
            return f"token {token} is {draft.special_text(token)!r} instead of {target.special_text(token)!r}"
    for name in ("bos", "eos", "eot"):
        mine_id, other_id = getattr(target, name), getattr(draft, name)
        if mine_id != other_id:
            return f"its {name.upper()} token is {other_id} instead of {mine_id}"
    if target.end_tokens != draft.end_tokens:
        return f"other tokens end a text: {sorted(target.end_tokens ^ draft.end_tokens)[:8]}"
    return None
