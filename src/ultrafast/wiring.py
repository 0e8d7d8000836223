"""The composition root: the only place that chooses who works with whom, and in what order they start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ultrafast import __version__
from ultrafast.api.app import build_app
from ultrafast.api.auth import ApiKeys, tenant_of
from ultrafast.api.context import Described, ExtraRoute
from ultrafast.api.edge import Edge
from ultrafast.api.engine_facts import EngineAdmin
from ultrafast.api.lifecycle import Lifecycle
from ultrafast.api.options import namespace
from ultrafast.config.api_keys import ApiKey
from ultrafast.config.recommended import with_recommendations
from ultrafast.config.settings import RequestLogSettings, Settings
from ultrafast.config.tier_policies import tier_order, tier_policies
from ultrafast.core.errors import ConfigError, InvalidRequestError, ModelFileError, UltrafastError
from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.calls import Objectives
from ultrafast.dashboard.dashboard import Dashboard, Sources
from ultrafast.dashboard.feed import Feed
from ultrafast.dashboard.page import page_routes
from ultrafast.dashboard.views import Frame
from ultrafast.engine.client import EngineClient
from ultrafast.engine.description import EngineDescription
from ultrafast.engine.health import EngineRestarted, RecoveryPolicy
from ultrafast.engine.llama.draft_vocab import check_draft_vocabulary, no_draft_model
from ultrafast.engine.llama.machine import check_threads
from ultrafast.engine.llama.vocab import Vocab
from ultrafast.engine.messages import Loading
from ultrafast.engine.options import DEFAULT_STEP_TARGET_S, EngineFacts, EngineOptions
from ultrafast.engine.warmup_plan import read_warmup_plan
from ultrafast.kv.names import PrefixNames
from ultrafast.models.cache import cache_dir
from ultrafast.models.resolve import ResolvedModel, resolve_model
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder
from ultrafast.observe.request_log.files import LogFiles
from ultrafast.observe.request_log.key import key_path, make_key
from ultrafast.observe.request_log.writer import RequestLog
from ultrafast.serving.content_log import ContentLoggingService
from ultrafast.serving.pinned import PinnedPrompts
from ultrafast.serving.prompts import PromptBuilder
from ultrafast.serving.reloading import ReloadingPromptBuilder
from ultrafast.serving.sampling import SamplingDefaults
from ultrafast.serving.segments import SegmentCache
from ultrafast.serving.service import Service

_log = logging.getLogger("ultrafast.server")

EVENTS = Described("Figures of the dashboard, several times a second", Frame, streams=True, errors=(429,))
STATE = Described("Figures of the dashboard, once", Frame)
ENGINE = Described("Limits of the engine and the cost of its steps", EngineDescription, errors=(503,))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything from outside, checked. `chat_template` replaces the model's own."""

    settings: Settings
    model: ResolvedModel
    api_keys: tuple[ApiKey, ...] = ()
    chat_template: str | None = None
    pinned_prompts: tuple[str, ...] = ()

    @property
    def model_id(self) -> str:
        """The name under which the API serves the model."""
        return self.settings.model.served_name or self.model.model_id


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Whom to tell of the start. `on_loading`: stage and fraction in [0, 1]; `on_ready`: once, when requests are served."""

    on_loading: Callable[[str, float], None]
    on_ready: Callable[[EngineFacts], None]


def build(inputs: Inputs, callbacks: Callbacks) -> Edge:
    """Put the parts together. The application's lifespan starts and stops the engine; nothing runs before it is entered.

    Raises:
        ModelFileError: the vocabulary cannot be read, or the chat template does not compile.
        ConfigError: no usable libllama, more threads than cores, or a draft model that is none or has another vocabulary.
    """
    settings = inputs.settings
    vocab = Vocab.load(str(inputs.model.path), settings.engine.libllama_path)
    draft_path = _check_draft_model(settings, vocab)
    engine = _build_engine(inputs, draft_path, callbacks.on_loading)
    service_class = ContentLoggingService if settings.logging.is_content_logged else Service
    service = service_class(
        engine,
        vocab,
        model_id=inputs.model_id,
        created_s=int(datetime.now(tz=UTC).timestamp()),
        defaults=_sampling_defaults(settings, vocab),
        prompts=_build_prompts(inputs, vocab),
        begins_next_turns=settings.model.begins_next_turns,
        policies=dict(zip(tier_order(settings.tiers), tier_policies(settings.tiers), strict=True)),
    )
    dashboard = _build_dashboard(inputs, engine)
    recorder = _build_recorder(settings, engine, dashboard)
    request_log = _open_request_log(settings.request_log, engine, recorder.metrics)
    lifecycle = Lifecycle()

    def on_ready(facts: EngineFacts) -> None:
        recorder.describe_build(__version__, facts.build, inputs.model_id)
        if facts.draft is not None:
            megabytes = (facts.draft.model_bytes / 1e6, facts.draft.kv_bytes / 1e6)
            _log.info("draft model %s: %.0f MB of weights, %.0f MB of KV", facts.draft.model_description, *megabytes)
        callbacks.on_ready(facts)

    async def start() -> None:
        on_ready(await engine.start())
        await _keep_pinned(inputs, service, engine)

    return build_app(
        service,
        engine.health,
        settings.server,
        recorder,
        keys=ApiKeys(inputs.api_keys),
        lifecycle=lifecycle,
        extra_routes=[
            *_dashboard_routes(dashboard, engine, lifecycle, needs_key=not settings.server.is_dashboard_open),
            _engine_route(inputs, engine),
        ],
        lifespan=lambda: _lifespan(engine, service, start, request_log),
        cache=engine,
        tiers=settings.tiers,
        engine_state=lambda: engine.state,
    )


@contextlib.asynccontextmanager
async def _lifespan(
    engine: EngineClient,
    service: Service,
    start: Callable[[], Coroutine[None, None, None]],
    request_log: RequestLog | None,
) -> AsyncIterator[None]:
    """Loads while requests are answered already (live 200, ready 503); a start that fails ends the body with its error.

    enter --> [ engine loads -> on_ready ]   in the background
    exit  --> a start that still goes on is given up -> engine child ends -> worker threads end -> the request log is written
    """
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(start(), name="engine-start"), group.create_task(service.run(), name="between-calls")]
            yield
            for task in tasks:
                task.cancel()
    except* UltrafastError as errors:
        failure = errors.exceptions[0]  # without the group's wrapping
    finally:
        await engine.close()
        service.close()
        if request_log is not None:
            await asyncio.to_thread(request_log.close)
    if failure is not None:
        raise failure


async def _keep_pinned(inputs: Inputs, service: Service, engine: EngineClient) -> None:
    """Behind the ready line, as long as the server runs: requests are served meanwhile, and go first."""
    if inputs.pinned_prompts:
        namespaces = [namespace(tenant_of(one.key), "") for one in inputs.api_keys] or [""]
        pinned = PinnedPrompts(service, engine, inputs.pinned_prompts, namespaces, time.monotonic)
        engine.add_restart_listener(lambda _: pinned.recompute())
        engine.add_clear_listener(pinned.recompute)
        await pinned.run()


def _build_prompts(inputs: Inputs, vocab: Vocab) -> PromptBuilder:
    settings = inputs.settings
    cache = SegmentCache(settings.tokenizer.cache_bytes)
    if not settings.tokenizer.is_reloaded:
        prompts = PromptBuilder(vocab, inputs.chat_template, cache)
        try:
            prompts.warm_up()
        except InvalidRequestError as error:  # completions may still work
            _log.warning("a plain conversation is refused by this model's chat template: %s", error)
        return prompts

    def reload() -> Vocab:
        return vocab.reloaded(str(inputs.model.path), settings.engine.libllama_path)

    _log.warning("the tokenizer is loaded anew for every chat prompt (tokenizer.is_reloaded)")
    return ReloadingPromptBuilder(vocab, inputs.chat_template, cache, reload)


def _check_draft_model(settings: Settings, vocab: Vocab) -> str | None:
    """The file of the draft model; None where there is none, or where nobody would ask it."""
    name = settings.engine.draft_model_path
    if name is None or settings.engine.speculation == "off":
        return None
    try:
        path = str(resolve_model(name).path)
        draft = Vocab.load(path, settings.engine.libllama_path)
    except ModelFileError as error:
        raise no_draft_model(error) from error
    try:
        check_draft_vocabulary(vocab, draft, path)
    finally:
        draft.close()
    return path


def _build_engine(inputs: Inputs, draft_path: str | None, on_loading: Callable[[str, float], None]) -> EngineClient:
    settings = inputs.settings
    check_threads(settings.engine.num_threads)
    values = settings.engine.model_dump()
    values["draft_model_path"] = draft_path
    values["kv_disk_path"] = str(Path(settings.engine.kv_disk_path or cache_dir() / "kv").expanduser())
    if settings.engine.warmup_plan is not None:
        read_warmup_plan(Path(settings.engine.warmup_plan).expanduser())  # what is wrong with it is said before anything starts
        values["warmup_plan"] = str(Path(settings.engine.warmup_plan).expanduser())
    options = EngineOptions(
        model_path=str(inputs.model.path), tier_order=tier_order(settings.tiers), tiers=tier_policies(settings.tiers), **values
    )
    policy = RecoveryPolicy(stall_after_s=settings.server.stall_after_s)

    def tell(progress: Loading) -> None:
        on_loading(progress.stage, progress.fraction)

    log = settings.logging
    arguments = ("--log-level", log.level, "--log-format", log.format)
    return EngineClient(options, on_loading=tell, policy=policy, arguments=arguments)


def _build_dashboard(inputs: Inputs, engine: EngineClient) -> Dashboard:
    targets = {tier: getattr(inputs.settings.tiers, tier) for tier in ServiceTier}
    objectives = {tier: Objectives(target.ttft_ms / 1000, target.tpot_ms / 1000) for tier, target in targets.items()}
    dashboard = Dashboard(objectives, version=__version__, model=inputs.model_id, clock=time.monotonic)
    engine.add_listener(dashboard.on_report)
    engine.add_restart_listener(dashboard.on_restart)
    return dashboard


def _dashboard_routes(dashboard: Dashboard, engine: EngineClient, lifecycle: Lifecycle, *, needs_key: bool) -> list[ExtraRoute]:
    """The page is public and empty; the figures need a key unless the settings say otherwise."""
    feed = Feed(dashboard, Sources(engine.health, lambda: engine.live_requests, lambda: lifecycle.is_draining))
    return [
        *(ExtraRoute(path, handle, needs_key=False) for path, handle in page_routes()),
        ExtraRoute("/dashboard/events", feed.events, needs_key, EVENTS),
        ExtraRoute("/dashboard/state", feed.state, needs_key, STATE),
    ]


def _engine_route(inputs: Inputs, engine: EngineClient) -> ExtraRoute:
    settings = inputs.settings.engine
    admin = EngineAdmin(
        lambda: engine.facts,
        inputs.model_id,
        settings.step_target_s or DEFAULT_STEP_TARGET_S,
        enable_prefix_cache=settings.enable_prefix_cache,
        enable_reservation=settings.enable_reservation,
    )
    engine.add_listener(admin.on_report)
    return ExtraRoute("/admin/engine", admin.show, not inputs.settings.server.is_metrics_open, described=ENGINE)


def _open_request_log(settings: RequestLogSettings, engine: EngineClient, metrics: Metrics) -> RequestLog | None:
    if settings.path is None:
        return None
    path = Path(settings.path).expanduser()
    if path.is_dir():
        raise ConfigError(
            f"request_log.path = {path} is a folder.",
            param="request_log.path",
            hint="Name a file, for example requests.jsonl in it.",
        )
    names = PrefixNames(make_key(key_path(path)))
    written, lost = (metrics.request_log_lines.labels(outcome) for outcome in ("written", "lost"))
    log = RequestLog(
        LogFiles(path, settings.max_bytes, settings.num_files),
        names,
        lambda is_written, num_lines: (written if is_written else lost).inc(num_lines),
    )
    engine.add_request_listener(log.submitted)
    engine.add_listener(log.on_report)
    return log


def build_metrics(settings: Settings) -> Metrics:
    """Make the metrics; every objective of the tiers is an edge of its histogram."""
    tiers = [getattr(settings.tiers, tier) for tier in ServiceTier]
    return Metrics(
        ttft_objectives_s=[tier.ttft_ms / 1000 for tier in tiers],
        tpot_objectives_s=[tier.tpot_ms / 1000 for tier in tiers],
        e2e_objectives_s=[tier.e2e_ms / 1000 for tier in tiers if tier.e2e_ms],
        jitter_objectives_s=[tier.jitter_ms / 1000 for tier in tiers if tier.jitter_ms],
    )


def _build_recorder(settings: Settings, engine: EngineClient, dashboard: Dashboard) -> Recorder:
    metrics = build_metrics(settings)
    metrics.watch_last_step_age(lambda: engine.health().last_step_age_s)
    recorder = Recorder(metrics, dashboard.calls)

    def note_restart(event: EngineRestarted) -> None:
        recorder.on_restart()
        _log.warning("the engine was lost (%s); %d requests wait for the next one", event.reason, event.num_live_requests)

    engine.add_listener(recorder.on_report)
    engine.add_restart_listener(note_restart)
    return recorder


def _sampling_defaults(settings: Settings, vocab: Vocab) -> SamplingDefaults:
    return SamplingDefaults(**with_recommendations(settings.sampling, vocab.metadata).model_dump())
