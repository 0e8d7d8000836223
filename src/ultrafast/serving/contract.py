"""What the HTTP edge asks of serving, and what it gets back. No HTTP types, no JSON, no libllama.

One call is one `ChatCall` or `CompletionCall`; the answer is a stream of `ServingEvent`s:

    Started                            admitted, first token is there: everything a response header needs is known
    Delta(index=i) ...                 text, tool calls or log-probabilities of choice i, in order per choice
    ChoiceFinished(index=i)            once per choice
    Completed                          once, last: usage and timings

An error before `Started` is raised as an `UltrafastError`; after it too, and the edge then reports it in-band.
Leaving the stream (closing the async generator) aborts whatever still runs.

Structs, not dataclasses: a frozen dataclass takes ten times as long to make, and a request makes many.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ultrafast.core.request import TIER_SLO, RequestSlo
from ultrafast.core.tiers import ServiceTier


class ResponseFormat(msgspec.Struct, frozen=True):
    """Structured output. `kind`: text, json_object or json_schema; `schema` is the JSON schema of json_schema."""

    kind: str = "text"
    schema: dict[str, Any] | None = None


TEXT_FORMAT = ResponseFormat()
"""Free text."""


class GenerationOptions(msgspec.Struct, frozen=True):
    """The options of a call, types and ranges already checked. None = the client did not say; the server's default applies.

    Attributes:
        num_choices: OpenAI's `n`.
        stop: stop strings; never part of the output.
        num_logprobs: None = off; k = chosen token plus the k most likely.
        requested_tier: canonical tier, or None when the client named none.
        slo: this request's own objectives.
        supersede_key: (the tenant, the client's key): a newer call of the same key ends this one.
        echo: completions only: repeat the prompt in front of the output.
        is_cached: False = `cache: "off"`: neither read from nor leave anything in the prefix cache.
        is_deterministic: run alone, so that the same request gives the same floats, and tokens, each time.
        may_speculate: False = tokens are computed one by one.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_choices: int = 1
    num_logprobs: int | None = None
    response_format: ResponseFormat = TEXT_FORMAT
    requested_tier: ServiceTier | None = None
    cache_salt: str = ""
    is_cached: bool = True
    may_speculate: bool = True
    is_deterministic: bool = False
    echo: bool = False
    slo: RequestSlo = TIER_SLO
    supersede_key: tuple[str, str] | None = None


class ChatCall(msgspec.Struct, frozen=True):
    """A chat completion. `messages` and `tools` are plain JSON values in OpenAI's shape, already shape-checked.

    Attributes:
        tool_choice: "none", "auto", "required" or a function name.
        template_kwargs: extra variables for the chat template (vLLM's `chat_template_kwargs`).
    """

    request_id: str
    model: str
    messages: list[dict[str, Any]]
    options: GenerationOptions
    arrival_s: float
    tools: list[dict[str, Any]] = []
    tool_choice: str = "auto"
    add_generation_prompt: bool = True
    template_kwargs: dict[str, Any] = {}


class CompletionCall(msgspec.Struct, frozen=True):
    """A text completion. Each prompt is text or token ids; choice `i` of prompt `p` has index p * num_choices + i."""

    request_id: str
    model: str
    prompts: list[str | list[int]]
    options: GenerationOptions
    arrival_s: float


class Placed(msgspec.Struct, frozen=True):
    """The engine gave the call its (first) place: it is not refused any more. No event of the stream; see `DeltaLane.placed`.

    Attributes:
        tier, tier_reason, queue_s: as in `Started`.
    """

    tier: ServiceTier
    tier_reason: str
    queue_s: float


class Started(msgspec.Struct, frozen=True):
    """The first token of the call is there.

    Attributes:
        tier: the tier that serves.
        tier_reason: why that one: "requested", "default", or that of `core.events.DropReason` which moved it to a less urgent one
        queue_s: from arrival until the engine gave the (first) sequence its place.
        prefill_s: from then until the first token.
    """

    tier: ServiceTier
    tier_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    queue_s: float
    prefill_s: float


class LogprobEntry(msgspec.Struct, frozen=True):
    """One delivered token, its log-probability and the most likely alternatives. `token_bytes` are exact, `token` is lossy."""

    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. `call_id` and `name` come with the first piece of call `index` only."""

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


class Delta(msgspec.Struct, frozen=True, gc=False):
    """New output of one choice. `num_tokens` tokens went into it (several when the reader was slow or text was held back)."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    num_tokens: int = 0


class ChoiceFinished(msgspec.Struct, frozen=True):
    """`reason` is OpenAI's: stop, length or tool_calls. `stop_match`: the stop string or token id that matched, if one did.

    With reason length it is `EXECUTION_TIMEOUT` when time, not length, was up.
    """

    index: int
    reason: str
    stop_match: str | int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts, summed over choices; prompt tokens count once per prompt."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


class Timings(msgspec.Struct, frozen=True):
    """Where the time of a call went, seconds. network + queue + compute + output = from arrival to the last byte.

    network: reading the request and waiting for a slow reader. queue: waiting for a place in the engine. compute: from the
    first scheduled step to the last token. output: everything else: template, tokeniser, text, JSON, the way between processes.

    `decode_s`: of each choice, from its first token to its last, in the engine.
    """

    queue_s: float
    compute_s: float
    prefill_s: float
    ttft_s: float
    decode_s: tuple[float, ...] = ()


class Completed(msgspec.Struct, frozen=True):
    """The call is over and every choice finished. `is_timed_out`: one of them was cut at its execution deadline."""

    usage: Usage
    timings: Timings
    is_timed_out: bool = False


ServingEvent = Started | Delta | ChoiceFinished | Completed
