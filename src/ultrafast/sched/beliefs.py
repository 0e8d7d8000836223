"""What the scheduler holds true at the moment, looked up once each time that everything is looked at (see `Planner.build`).

Streams that have the machine to themselves go on for many steps without such a look: what it would find is known, and asking
again costs cold memory.
"""

from __future__ import annotations

from typing import NamedTuple

from ultrafast.core.events import Reserved
from ultrafast.sched.cost import CostModel, Row
from ultrafast.sched.reservation import Reservations
from ultrafast.sched.speculation.drafting import Drafting


class Beliefs(NamedTuple):
    """See `core.events.StepFinished`, which tells all but the first.

    `coefficients`: of the cost model, also while it does not know enough for `cost_s`.
    """

    coefficients: Row
    cost_s: Row
    reserved: tuple[Reserved, ...]
    speculation_gain: float
    draft_model_gain: float

    @classmethod
    def look_up(cls, cost: CostModel, reservations: Reservations, drafting: Drafting) -> Beliefs:
        """Ask all who know."""
        coefficients = cost.coefficients
        cost_s = coefficients if cost.is_fitted else (0.0, 0.0, 0.0)
        return cls(coefficients, cost_s, reservations.report(), drafting.gain.value, drafting.model_gain.value)
