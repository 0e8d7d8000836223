"""The OpenAPI document of the whole application, as it is put together for a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from tests.component.api.fake_service import FakeService, healthy

from ultrafast import wiring
from ultrafast.api.app import build_app
from ultrafast.api.edge import Edge
from ultrafast.api.lifecycle import Lifecycle
from ultrafast.api.openapi import openapi_document
from ultrafast.config.settings import Settings
from ultrafast.dashboard.page import page_routes
from ultrafast.engine.client import EngineClient
from ultrafast.engine.options import EngineOptions
from ultrafast.models.gguf import GgufFacts
from ultrafast.models.resolve import ResolvedModel
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder

FOR_PEOPLE = {"/openapi.json", "/docs", "/"}
"""Pages, and the document itself."""


def _application(**server: Any) -> tuple[Edge, dict[str, Any]]:
    settings = Settings(server=server)
    engine = EngineClient(EngineOptions(model_path="none.gguf"))
    inputs = wiring.Inputs(settings, ResolvedModel("none", Path("none.gguf"), cast("GgufFacts", None)))
    dashboard = wiring._build_dashboard(inputs, engine)
    needs_key = not settings.server.is_dashboard_open
    routes = [
        *wiring._dashboard_routes(dashboard, engine, Lifecycle(), needs_key=needs_key),
        wiring._engine_route(inputs, engine),
    ]
    app = build_app(FakeService(), healthy, settings.server, Recorder(Metrics()), extra_routes=routes)
    return app, json.loads(openapi_document(tuple(routes)))


def test_every_route_of_the_server_is_in_the_document() -> None:
    app, document = _application()
    served = {
        (method.lower(), route.path.replace(":path", ""))
        for route in app._router.routes  # type: ignore[attr-defined]
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    documented = {(method, path) for path, methods in document["paths"].items() for method in methods}
    files = {path for path, _ in page_routes()}
    assert {path for _, path in served - documented} == FOR_PEOPLE | files, "add it to OPERATIONS, or describe its ExtraRoute"
    assert documented <= served


def _operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {path: operation for path, methods in document["paths"].items() for operation in methods.values()}


def _section(title: str) -> str:
    """A section of the API's page, without those below it."""
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    return re.split(r"^#", page.split(f"# {title}\n")[1], flags=re.MULTILINE)[0]


def test_every_status_of_the_errors_page_is_in_the_document() -> None:
    _, document = _application()
    rows = re.findall(r"^\| ([0-9, ]+) \|", _section("Errors"), re.MULTILINE)
    documented = {status for row in rows for status in row.split(", ")}
    assert {"409", "422", "431", "405", "503"} <= documented
    operations = _operations(document)
    assert documented <= {status for operation in operations.values() for status in operation["responses"]}
    assert documented - {"403"} <= set(operations["/v1/chat/completions"]["responses"])


def test_every_request_header_of_the_page_is_in_the_document() -> None:
    _, document = _application()
    rows = re.findall(r"^\| (`x-.*?`) \|", _section("Request headers"), re.MULTILINE)
    documented = {name.strip("`") for row in rows for name in row.split(", ")}
    for path in ("/v1/chat/completions", "/v1/completions"):
        parameters = _operations(document)[path]["parameters"]
        assert {one["name"] for one in parameters if one["in"] == "header"} == documented


def test_the_503_of_readiness_is_described_as_what_it_is() -> None:
    _, document = _application()
    answers = _operations(document)["/health/ready"]["responses"]
    assert answers["503"]["content"] == answers["200"]["content"]


@pytest.mark.parametrize("is_open", [False, True])
def test_keys_are_needed_where_the_document_says_so(is_open: bool) -> None:
    _, document = _application(is_dashboard_open=is_open, is_metrics_open=is_open)
    for path in ("/dashboard/state", "/dashboard/events", "/admin/engine"):
        operation = document["paths"][path]["get"]
        assert ("security" in operation) == ("401" in operation["responses"]) == (not is_open)


def test_every_reference_leads_somewhere() -> None:
    _, document = _application()
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names == names & set(document["components"]["schemas"])
    assert {"Frame", "EngineDescription"} <= names
