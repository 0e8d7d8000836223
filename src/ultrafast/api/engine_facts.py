"""`GET /admin/engine`: the limits that the engine works within and what a step costs it, for planning on paper.

`ultrafast simulate --fit` reads it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ultrafast.api.exchange import Exchange
from ultrafast.engine.description import EngineDescription
from ultrafast.engine.messages import StepReport
from ultrafast.engine.options import EngineFacts


class EngineAdmin:
    """The route, and the listener that remembers the last cost.

    Args:
        facts: what the engine says about itself; raises UnavailableError before it is ready.
        step_target_s: what steps are planned by.
        enable_prefix_cache, enable_reservation: as set; the engine's facts do not tell.
    """

    def __init__(
        self,
        facts: Callable[[], EngineFacts],
        model: str,
        step_target_s: float,
        *,
        enable_prefix_cache: bool = True,
        enable_reservation: bool = True,
    ) -> None:
        self._facts = facts
        self._model = model
        self._step_target_s = step_target_s
        self._enable_prefix_cache = enable_prefix_cache
        self._enable_reservation = enable_reservation
        self._cost_s = (0.0, 0.0, 0.0)
        self._num_steps = 0

    def on_report(self, report: StepReport) -> None:
        """Hear what came of a step."""
        stats = report.stats
        if stats is not None and stats.num_tokens:
            self._num_steps += 1
            self._cost_s = stats.cost_s

    async def show(self, exchange: Exchange) -> None:
        """Answer `GET /admin/engine`."""
        facts = self._facts()
        base_s, output_s, token_s = self._cost_s
        view = EngineDescription(
            model=self._model,
            kv_capacity_tokens=facts.kv_capacity_tokens,
            max_request_tokens=facts.max_request_tokens,
            max_step_tokens=facts.max_step_tokens,
            max_num_running=facts.max_num_running,
            max_num_paused=facts.max_num_paused,
            max_num_cached=facts.max_num_cached,
            max_cached_tokens=facts.max_cached_tokens,
            step_target_s=self._step_target_s,
            base_s=base_s,
            output_s=output_s,
            token_s=token_s,
            num_steps=self._num_steps,
            can_interrupt=facts.can_interrupt,
            max_side_tokens=facts.max_side_tokens,
            can_trim=facts.can_trim,
            enable_prefix_cache=self._enable_prefix_cache,
            enable_reservation=self._enable_reservation,
        )
        await exchange.respond(200, [], msgspec.json.encode(view))
