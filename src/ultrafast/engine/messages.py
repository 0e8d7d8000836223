"""What the API process and an engine child say to each other: MessagePack with a checked schema, one struct per message.

    API process                         engine child
    Configure        ----------->       loads, warms up
                     <-----------       Loading (progress), then Ready or LoadFailed
    Submit, Abort    ----------->
                     <-----------       StepReport: one message per step, with the tokens of all sequences
                     <-----------       Heartbeat: every HEARTBEAT_INTERVAL_S, from a thread of its own
    Shutdown         ----------->       exits 0

A frame on the socket is a 4-byte little-endian length, then the message. Both ends are one build of Ultrafast, so the
schema has no versions; an unreadable message means a broken peer and ends the connection.
"""

from __future__ import annotations

import msgspec

from ultrafast.core.events import (
    KvLevelsChanged,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    TokenProduced,
)
from ultrafast.core.request import Request
from ultrafast.engine.options import EngineFacts, EngineOptions

HEARTBEAT_INTERVAL_S = 0.5
MAX_FRAME_BYTES = 64 * 1024 * 1024


class Configure(msgspec.Struct, tag="configure", frozen=True):
    """First message to a new child. `is_replacement`: requests wait for it, so it skips the warm-up."""

    options: EngineOptions
    is_replacement: bool = False


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """Start (or, with output tokens, continue) a request."""

    request: Request


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """End requests whose client went away; unknown ids are ignored (they may just have finished)."""

    request_ids: list[str]


class ClearCache(msgspec.Struct, tag="clear_cache", frozen=True):
    """Forget all KV that no running request needs, on the device, in host memory and, `with_disk`, on disk."""

    with_disk: bool


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """Stop at the next step border and exit."""


class Loading(msgspec.Struct, tag="loading", frozen=True):
    """How far the start has come; `fraction` in [0, 1] within the stage."""

    stage: str
    fraction: float


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Loaded and warm."""

    facts: EngineFacts


class LoadFailed(msgspec.Struct, tag="load_failed", frozen=True):
    """The child cannot serve and exits; starting it again would not help. The fields are those of `UltrafastError`.

    `is_setting`: a setting is at fault (ConfigError), not the model file (ModelFileError).
    """

    message: str
    hint: str | None = None
    code: str | None = None
    param: str | None = None
    is_setting: bool = False


class StepReport(msgspec.Struct, tag="step", frozen=True, omit_defaults=True):
    """All that came of one step (or of commands between steps, then without `stats`)."""

    tokens: list[TokenProduced] = []
    scheduled: list[RequestScheduled] = []
    preempted: list[RequestPreempted] = []
    finished: list[RequestFinished] = []
    stats: StepFinished | None = None
    levels: KvLevelsChanged | None = None


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """Alive, and whether it moves: the time of the last finished step, and whether there is work that should make steps."""

    step: int
    last_step_s: float
    has_work: bool


ToEngine = Configure | Submit | Abort | ClearCache | Shutdown
FromEngine = Loading | Ready | LoadFailed | StepReport | Heartbeat
