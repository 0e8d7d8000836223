"""`GET /admin/engine`: limits and the cost of steps, for `ultrafast simulate --fit`."""

from __future__ import annotations

import httpx
from tests.component.api.fake_service import FakeService, healthy
from tests.engine_facts import engine_facts

from ultrafast.api.app import build_app
from ultrafast.api.auth import ApiKeys
from ultrafast.api.context import ExtraRoute
from ultrafast.api.engine_facts import EngineAdmin
from ultrafast.bench.simulate.engine_spec import decode_engine
from ultrafast.config.settings import ServerSettings
from ultrafast.core.errors import UnavailableError
from ultrafast.core.events import StepFinished
from ultrafast.engine.messages import StepReport
from ultrafast.engine.options import EngineFacts
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder

FACTS = engine_facts(kv_capacity_tokens=4096)


def report(num_tokens: int, cost_s: tuple[float, float, float]) -> StepReport:
    return StepReport(stats=StepFinished(1, 0, 0.1, 0, num_tokens, 0, num_tokens, 0, 1, 0, 1, 0, 9, cost_s=cost_s))


def connect(admin: EngineAdmin, keys: ApiKeys | None = None) -> httpx.AsyncClient:
    routes = [ExtraRoute("/admin/engine", admin.show)]
    app = build_app(FakeService(), healthy, ServerSettings(), Recorder(Metrics()), keys=keys, extra_routes=routes)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")  # type: ignore[arg-type]


async def test_the_answer_is_what_simulate_reads() -> None:
    admin = EngineAdmin(lambda: FACTS, "m", 0.05)
    admin.on_report(report(3, (0.002, 0.007, 0.005)))
    admin.on_report(report(0, (0.0, 0.0, 0.0)))  # nothing ran
    async with connect(admin) as http:
        answer = await http.get("/admin/engine")
    described = decode_engine(answer.content, "test")
    assert (described.kv_capacity_tokens, described.num_steps, described.step_target_s) == (4096, 1, 0.05)
    assert (described.base_s, described.output_s, described.token_s) == (0.002, 0.007, 0.005)


async def test_what_a_simulation_needs_to_know_of_reuse_and_reservation_is_told() -> None:
    facts = engine_facts(can_trim=False)
    async with connect(EngineAdmin(lambda: facts, "m", 0.05, enable_prefix_cache=False, enable_reservation=False)) as http:
        told = (await http.get("/admin/engine")).json()
    assert (told["can_trim"], told["enable_prefix_cache"], told["enable_reservation"]) == (False, False, False)


async def test_while_the_model_loads_it_says_so() -> None:
    def facts() -> EngineFacts:
        raise UnavailableError("the model is still loading", code="model_loading")

    async with connect(EngineAdmin(facts, "m", 0.05)) as http:
        answer = await http.get("/admin/engine")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")


async def test_it_needs_a_key_where_there_are_keys() -> None:
    async with connect(EngineAdmin(lambda: FACTS, "m", 0.05), ApiKeys([("alice", "key-of-alice")])) as http:
        assert (await http.get("/admin/engine")).status_code == 401
