"""What the edge needs of serving. `serving.service.Service` is one; tests script another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from ultrafast.core.events import KvLevelsChanged
from ultrafast.engine.device_kv import DeviceKv
from ultrafast.serving.contract import ChatCall, CompletionCall, ServingEvent
from ultrafast.serving.lane import DeltaLane
from ultrafast.serving.prompts import Conversation
from ultrafast.serving.service import ModelInfo


class CachePort(Protocol):
    """What the edge needs of the engine to administer its KV cache."""

    @property
    def levels(self) -> KvLevelsChanged | None: ...
    @property
    def device_kv(self) -> DeviceKv | None: ...
    def clear_cache(self, *, with_disk: bool) -> None: ...


class ServicePort(Protocol):
    """Use cases of the server. All methods run on the event loop and raise `UltrafastError`s for clients to see."""

    def models(self) -> list[ModelInfo]: ...
    def chat(self, call: ChatCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]: ...
    def complete(self, call: CompletionCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]: ...
    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...
    async def tokenize_chat(self, conversation: Conversation) -> list[int]: ...
    async def detokenize(self, tokens: Sequence[int]) -> str: ...
    async def token_texts(self, tokens: Sequence[int]) -> list[str]: ...
