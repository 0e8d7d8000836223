"""The edge with a dashboard on it, around a fake service and an engine that reports what a test says."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tests.component.api.fake_service import FakeService, Script, healthy

from ultrafast.api.app import build_app
from ultrafast.api.auth import ApiKeys
from ultrafast.api.context import ExtraRoute
from ultrafast.api.edge import Edge
from ultrafast.api.lifecycle import Lifecycle
from ultrafast.config.settings import ServerSettings
from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.calls import Objectives
from ultrafast.dashboard.dashboard import Dashboard, Sources
from ultrafast.dashboard.feed import Feed
from ultrafast.dashboard.page import page_routes
from ultrafast.engine.live import LiveRequest
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder

INTERVAL_S = 0.02


@dataclass
class Setup:
    """As `tests.component.api.edge.Setup`, and what belongs to the dashboard. `live` is what the engine's client holds."""

    app: Edge
    service: FakeService
    lifecycle: Lifecycle
    metrics: Metrics
    recorder: Recorder
    dashboard: Dashboard
    feed: Feed
    live: list[LiveRequest] = field(default_factory=list)


def make(
    scripts: dict[str, Script] | None = None,
    *,
    keys: ApiKeys | None = None,
    max_watchers: int = 16,
    interval_s: float = INTERVAL_S,
    **settings: Any,
) -> Setup:
    objectives = {tier: Objectives(0.2, 0.025) for tier in ServiceTier}
    dashboard = Dashboard(objectives, version="1.2.3", model="test-model", clock=time.monotonic)
    service, lifecycle, metrics = FakeService(scripts), Lifecycle(), Metrics()
    recorder = Recorder(metrics, dashboard.calls)
    live: list[LiveRequest] = []
    sources = Sources(healthy, lambda: live, lambda: lifecycle.is_draining)
    feed = Feed(dashboard, sources, interval_s=interval_s, max_watchers=max_watchers)
    server = ServerSettings(**settings)
    routes = [
        *(ExtraRoute(path, handle, needs_key=False) for path, handle in page_routes()),
        ExtraRoute("/dashboard/events", feed.events, not server.is_dashboard_open),
        ExtraRoute("/dashboard/state", feed.state, not server.is_dashboard_open),
    ]
    app = build_app(service, healthy, server, recorder, keys=keys, lifecycle=lifecycle, extra_routes=routes)
    return Setup(app, service, lifecycle, metrics, recorder, dashboard, feed, live)
