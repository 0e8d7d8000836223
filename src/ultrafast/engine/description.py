"""An engine as JSON, for planning on paper: what `GET /admin/engine` answers and `ultrafast simulate` reads."""

from __future__ import annotations

import msgspec


class EngineDescription(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One engine. A step takes `base_s + output_s * outputs + token_s * prefill tokens`; zeros before it has run any.

    Times in seconds. `num_steps`: steps since the server started; the cost is that of the latest ones.
    """

    model: str = ""
    kv_capacity_tokens: int
    max_request_tokens: int
    max_step_tokens: int
    max_num_running: int
    max_num_paused: int
    max_num_cached: int
    max_cached_tokens: int
    step_target_s: float
    base_s: float
    output_s: float
    token_s: float
    num_steps: int
    can_interrupt: bool = False
    max_side_tokens: int = 0
    can_trim: bool = True
    enable_prefix_cache: bool = True
    enable_reservation: bool = True
