"""Errors that a caller may see, each with what it needs to act: a code, the offending parameter, a hint.

The class says *whose* problem it is; the HTTP edge maps classes to statuses and never parses messages.
Broken invariants inside Ultrafast are asserts, not these.
"""

from __future__ import annotations


class UltrafastError(Exception):
    """Base of all errors that are meant for a person or a client.

    Attributes:
        message: what happened, with the numbers that matter; one sentence.
        code: stable machine-readable name, snake_case.
        param: the request field or setting at fault, if one is.
        hint: what to do about it, if that is known.
        drop_reason: why a request was refused, from the closed list of `core.events.DropReason`; None when it was not that.
    """

    code = "internal_error"
    drop_reason: str | None = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.code, self.param, self.hint))


def _rebuild(kind: type[UltrafastError], message: str, code: str, param: str | None, hint: str | None) -> UltrafastError:
    return kind(message, code=code, param=param, hint=hint)


class InvalidRequestError(UltrafastError):
    """The client's request can never succeed as it stands (HTTP 400)."""

    code = "invalid_value"


class ContextLengthError(InvalidRequestError):
    """Prompt plus requested output exceed the model's context (HTTP 400)."""

    code = "context_length_exceeded"


class ModelNotFoundError(UltrafastError):
    """The named model is not served here (HTTP 404)."""

    code = "model_not_found"


class OverloadedError(UltrafastError):
    """Capacity exists but is taken; coming back later can succeed (HTTP 429).

    Attributes:
        retry_after_s: best estimate of when to come back, seconds.
    """

    code = "slow_down"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after_s = retry_after_s


class UnavailableError(UltrafastError):
    """No serving capacity at all right now: starting, restarting, draining (HTTP 503).

    Attributes:
        retry_after_s: best estimate of when to come back, seconds.
    """

    code = "server_is_overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after_s = retry_after_s


class SupersededError(UltrafastError):
    """The client sent a newer request in place of this one (HTTP 409)."""

    code = "superseded"


class EngineFailedError(UltrafastError):
    """The engine could not finish this request (HTTP 500)."""

    code = "engine_failed"


class ConfigError(UltrafastError):
    """A setting is unknown, out of range or contradicts another; raised before anything starts."""

    code = "invalid_config"


class ModelFileError(UltrafastError):
    """A model file is missing, cut, of the wrong kind or unsupported; raised before anything starts."""

    code = "invalid_model_file"
