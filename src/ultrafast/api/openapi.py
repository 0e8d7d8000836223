"""The OpenAPI document. Its schemas are the structs that parse and build the bodies; only the list of routes is written here.

Routes of other layers bring their own description (`ExtraRoute`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ultrafast import __version__
from ultrafast.api.answers import ChatCompletion, Completion
from ultrafast.api.cache import CacheView, ClearAnswer, ClearRequest
from ultrafast.api.chat_fields import ChatRequest
from ultrafast.api.completion_fields import CompletionRequest, DetokenizeRequest, TokenizeRequest
from ultrafast.api.context import Described, ExtraRoute
from ultrafast.api.errors import ErrorBody, status_phrase
from ultrafast.api.health import Readiness
from ultrafast.api.models import Model, ModelList
from ultrafast.api.tokens import DetokenizeResponse, TokenizeResponse

_REF = "#/components/schemas/{name}"
_ANY_ERRORS = (400, 405, 408, 431, 500)
"""Of every route: what is no HTTP, a method that its path does not take, headers too slow or too large, a failure of ours."""
_POST_ERRORS = (401, 404, 411, 413, 415, 503)
_GENERATION_ERRORS = (*_POST_ERRORS, 409, 422, 429)
_NUMBER, _INTEGER = {"type": "number", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 0}
_REQUEST_ID = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[ -~]*$"}
GENERATION_HEADERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("x-slo-ttft-ms", "objective of this request: time to its first token", _NUMBER),
    ("x-slo-tpot-ms", "objective of this request: mean time per further token", _NUMBER),
    ("x-slo-strict", "refuse rather than serve too late", {"type": "string", "enum": ["true", "false"]}),
    ("x-queue-ttl-ms", "longest wait for a place; can only shorten that of the tier", _NUMBER),
    ("x-execution-ttl-ms", "longest time from its place to its end; what is there by then is the answer", _NUMBER),
    ("x-stainless-retry-count", "how often the client was refused before", _INTEGER),
    ("x-supersede-key", "a newer request with the same key ends this one", {"type": "string"}),
    ("x-request-priority", "a tier, or critical, high, interactive, normal, low", {"type": "string"}),
)
"""Name, meaning, schema."""


@dataclass(frozen=True, slots=True)
class _Operation:
    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct] | str
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()
    needs_key: bool = True
    needs_body: bool = True
    generates: bool = False
    unready: type[msgspec.Struct] | None = None
    """The body of its 503, where that is no error."""


OPERATIONS = (
    _Operation(
        "post", "/v1/chat/completions", "Chat completion", ChatCompletion, ChatRequest, True, _GENERATION_ERRORS, generates=True
    ),
    _Operation(
        "post", "/v1/completions", "Text completion", Completion, CompletionRequest, True, _GENERATION_ERRORS, generates=True
    ),
    _Operation("get", "/v1/slo", "Objectives of the tiers and how well they were kept", "application/json", errors=(401,)),
    _Operation("get", "/v1/models", "Served models", ModelList, errors=(401, 503)),
    _Operation("get", "/v1/models/{model}", "One served model", Model, errors=(401, 404, 503)),
    _Operation("post", "/tokenize", "Text or conversation to token ids", TokenizeResponse, TokenizeRequest, errors=_POST_ERRORS),
    _Operation("post", "/detokenize", "Token ids to text", DetokenizeResponse, DetokenizeRequest, errors=_POST_ERRORS),
    _Operation("get", "/health/live", "The process runs", "application/json", needs_key=False),
    _Operation(
        "get",
        "/health/ready",
        "New requests will be served; else 503 with the reason",
        Readiness,
        needs_key=False,
        unready=Readiness,
    ),
    _Operation("get", "/metrics", "Metrics in Prometheus' text format", "text/plain", errors=(401,)),
    _Operation("get", "/admin/cache", "KV by level", CacheView, errors=(401,)),
    _Operation(
        "post",
        "/admin/cache/clear",
        "Forget all KV that no running request needs",
        ClearAnswer,
        ClearRequest,
        errors=(*_POST_ERRORS, 403),
        needs_body=False,
    ),
)


def openapi_document(extra_routes: tuple[ExtraRoute, ...] = ()) -> bytes:
    """Return the document as JSON, with those of `extra_routes` that are described."""
    operations = (*OPERATIONS, *(_extra(route, route.described) for route in extra_routes if route.described is not None))
    structs = [kind for op in operations for kind in (op.answer, op.body) if isinstance(kind, type)]
    _, components = msgspec.json.schema_components([*structs, ErrorBody], ref_template=_REF)
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Ultrafast", "version": __version__, "description": "OpenAI-compatible LLM server."},
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        }
    )


def _extra(route: ExtraRoute, described: Described) -> _Operation:
    errors = (401, *described.errors) if route.needs_key else described.errors
    return _Operation(
        "get", route.path, described.summary, described.answer, None, described.streams, errors, needs_key=route.needs_key
    )


def _operation(operation: _Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}{operation.path}".replace("/", "_").replace("{", "").replace("}", ""),
        "parameters": _parameters(operation),
        "responses": {"200": _success(operation)}
        | {str(status): _error(status) for status in sorted({*_ANY_ERRORS, *operation.errors})},
    }
    if operation.unready is not None:
        described["responses"]["503"] = {"description": status_phrase(503), "content": _json(operation.unready)}
    if operation.body is not None:
        described["requestBody"] = {"required": operation.needs_body, "content": _json(operation.body)}
    if operation.needs_key:
        described["security"] = [{"key": []}, {}]
    return described


def _parameters(operation: _Operation) -> list[dict[str, Any]]:
    headers = [("x-request-id", "the id of the request in answer and log", _REQUEST_ID)]
    headers += GENERATION_HEADERS if operation.generates else ()
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "header", "description": meaning, "schema": schema} for name, meaning, schema in headers
    ]
    if "{model}" in operation.path:
        parameters.append({"name": "model", "in": "path", "required": True, "schema": {"type": "string"}})
    return parameters


def _success(operation: _Operation) -> dict[str, Any]:
    if isinstance(operation.answer, str):
        return {"description": "OK", "content": {operation.answer: {}}}
    content = _json(operation.answer)
    if operation.streams and operation.body is None:
        events = {
            "schema": {"type": "string", "description": f"each event is a {operation.answer.__name__}, until either side ends"}
        }
        return {"description": "OK", "content": {"text/event-stream": events}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string", "description": "with stream: true; ends with data: [DONE]"}}
    return {"description": "OK", "content": content}


def _error(status: int) -> dict[str, Any]:
    return {"description": status_phrase(status), "content": _json(ErrorBody)}


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}}
