"""`GET /v1/models` and `GET /v1/models/{id}`: OpenAI's fields, and what the engine really got under `ultrafast`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import msgspec

from ultrafast import __version__
from ultrafast.api.context import EdgeContext
from ultrafast.api.exchange import Exchange
from ultrafast.core.errors import ModelNotFoundError
from ultrafast.serving.service import ModelInfo


class Model(msgspec.Struct, kw_only=True):
    """A served model. `ultrafast` holds facts about the engine, read back from it after loading."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ultrafast"
    max_model_len: int
    ultrafast: dict[str, Any]


class ModelList(msgspec.Struct, kw_only=True):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Models:
    """The two model routes."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context

    async def list_all(self, exchange: Exchange) -> None:
        """Answer `GET /v1/models`."""
        models = [_model(info) for info in self._context.service.models()]
        await exchange.respond(200, [], msgspec.json.encode(ModelList(data=models)))

    async def show(self, exchange: Exchange) -> None:
        """Answer `GET /v1/models/{id}`."""
        name = exchange.scope["path_params"]["model"]
        for info in self._context.service.models():
            if info.model_id == name:
                await exchange.respond(200, [], msgspec.json.encode(_model(info)))
                return
        raise ModelNotFoundError(f"The model {name[:200]!r} is not served here.", param="model", hint="see GET /v1/models")


def _model(info: ModelInfo) -> Model:
    facts = {"version": __version__, **asdict(info.facts)}
    return Model(id=info.model_id, created=info.created_s, max_model_len=info.facts.max_request_tokens, ultrafast=facts)
