"""Follows a run while it goes on and says when every verdict is certain.

Called with each finished request, in any order, from one thread. Requests are taken up in the order of the plan as far as
it is complete: the slow ones that are still open must not be passed over by the fast ones behind them.

Looks happen at sizes that grow by a quarter each. The tests allow any number of looks; spacing them keeps the work small beside
that of the client, which shares the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ultrafast.bench.gate.judge import MIN_REQUESTS, Mode, Rules, judge
from ultrafast.bench.gate.samples import Sampled, is_of_tier, values_of
from ultrafast.bench.gate.targets import Target
from ultrafast.bench.gate.verdicts import TargetResult, Verdict
from ultrafast.bench.records import RequestRecord

FIRST_LOOK = 50
LOOK_GROWTH = 1.25


def num_looks(num_requests: int) -> int:
    """Looks that a watch has taken when it stops after so many requests, one by one; at least 1."""
    size, count = FIRST_LOOK, 1
    while (size := int(size * LOOK_GROWTH)) <= num_requests:
        count += 1
    return count


class Watch:
    """Sequential evaluation of a run.

    Attributes:
        look: number of looks so far.
        results: of the last look, without bounds.
    """

    def __init__(self, targets: Sequence[Target], rules: Rules) -> None:
        assert FIRST_LOOK >= MIN_REQUESTS, "a look before the minimum could never decide"
        self._targets = targets
        self._rules = replace(rules, mode=Mode.SEQUENTIAL, num_targets=len(targets))
        self._samples = {target: Sampled() for target in targets}
        self._early: dict[int, RequestRecord] = {}
        self._num_taken = 0
        self._next_look = FIRST_LOOK
        self._num_decided: int | None = None
        self.look = 0
        self.results: tuple[TargetResult, ...] = ()

    @property
    def num_taken(self) -> int:
        """Requests of the plan's beginning that are complete."""
        return self._num_taken

    @property
    def num_decided(self) -> int | None:
        """Requests at which every verdict became certain; None if that never came."""
        return self._num_decided

    @property
    def next_rules(self) -> Rules:
        """The rules to judge the whole run by: those of the deciding look, or of one more look."""
        return replace(self._rules, look=max(1, self.look + (self._num_decided is None)))

    def add(self, record: RequestRecord) -> bool:
        """Take a finished request; true once every verdict is certain and the run may stop."""
        self._early[record.index] = record
        while (ready := self._early.pop(self._num_taken, None)) is not None:
            self._num_taken += 1
            self._take(ready)
        if self._num_taken < self._next_look:
            return False
        self._next_look = max(self._num_taken + 1, int(self._num_taken * LOOK_GROWTH))
        return self._look()

    def _take(self, record: RequestRecord) -> None:
        for target, found in self._samples.items():
            if not is_of_tier(record, target.tier):
                continue
            values = values_of(record, target)
            if values is None:
                found.num_open += 1
            elif len(values):
                found.values.append(values)
            else:
                found.num_not_applicable += 1

    def _look(self) -> bool:
        self.look += 1
        rules = replace(self._rules, look=self.look, has_bounds=False)
        self.results = tuple(judge(target, self._samples[target], rules) for target in self._targets)
        verdicts = [result.verdict for result in self.results]
        is_certain = Verdict.FAIL in verdicts or all(verdict is Verdict.PASS for verdict in verdicts)
        if is_certain:
            self._num_decided = self._num_taken
        return is_certain
