"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec

from ultrafast.api.completion_fields import DetokenizeRequest, TokenizeRequest
from ultrafast.api.context import EdgeContext
from ultrafast.api.errors import ApiError
from ultrafast.api.exchange import Exchange
from ultrafast.core.errors import ModelNotFoundError
from ultrafast.serving.prompts import Conversation


class TokenizeResponse(msgspec.Struct, omit_defaults=True):
    """Token ids of a text or a conversation."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text of token ids."""

    prompt: str


class Tokens:
    """The two token routes."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context

    async def tokenize(self, exchange: Exchange) -> None:
        """Answer `POST /tokenize`."""
        self._context.lifecycle.check()
        request, plain = await self._context.read(exchange, TokenizeRequest)
        if (request.prompt is None) == (request.messages is None):
            raise ApiError(400, "invalid_value", "Give either prompt or messages.", param="prompt")
        model = self._check_model(request.model)
        tokens = await self._tokens(request, plain)
        names = await self._context.service.token_texts(tokens) if request.return_token_strs else None
        answer = TokenizeResponse(len(tokens), model.facts.max_request_tokens, tokens, names)
        await exchange.respond(200, [], msgspec.json.encode(answer))

    async def detokenize(self, exchange: Exchange) -> None:
        """Answer `POST /detokenize`."""
        self._context.lifecycle.check()
        request, _ = await self._context.read(exchange, DetokenizeRequest)
        self._check_model(request.model)
        text = await self._context.service.detokenize(request.tokens)
        await exchange.respond(200, [], msgspec.json.encode(DetokenizeResponse(text)))

    async def _tokens(self, request: TokenizeRequest, plain: dict[str, Any]) -> list[int]:
        service = self._context.service
        if request.prompt is not None:
            return await service.tokenize(request.prompt, add_special=request.add_special_tokens is not False)
        return await service.tokenize_chat(
            Conversation(
                plain["messages"],
                plain.get("tools") or [],
                request.add_generation_prompt is not False,
                request.chat_template_kwargs or {},
            )
        )

    def _check_model(self, name: str | None) -> Any:
        models = self._context.service.models()
        for model in models:
            if name is None or model.model_id == name:
                return model
        served = ", ".join(model.model_id for model in models)
        raise ModelNotFoundError(f"The model {name!r} is not served here.", param="model", hint=f"this server serves {served}")
